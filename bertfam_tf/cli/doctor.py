"""``bertfam doctor``."""

import argparse

from bertfam_tf.cli.common import Commands, add_command


def add(commands: Commands) -> None:
    add_command(
        commands, "doctor", run, "print versions, devices, and what is missing for which feature"
    )


def run(options: argparse.Namespace) -> None:
    from bertfam_tf import doctor

    findings = doctor.check()
    print(doctor.table(findings))
    if any(finding.problem is not None for finding in findings):
        raise ValueError("something is missing or does not run; see the lines with →")
