"""Speed on CPU cores compared with other libraries: ``python -m tools.bench.cpu``, `make bench`.

``turns`` runs processes and statistics, ``workloads`` has the texts, ``prepare`` writes the models,
``engines`` and ``training`` answer and train in processes of their own, ``sections`` says what is
measured, and ``report`` writes the tables and the picture.
"""
