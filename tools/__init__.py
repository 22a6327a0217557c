"""Tools for maintainers: goldens, comparisons with the reference implementation, checks."""
