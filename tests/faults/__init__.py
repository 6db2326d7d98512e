"""The fault suite: a scenario for each fault of the matrix, injected for real, judged by evidence from outside.

- `matrix`: the faults, by number, and what may be missing here with the reason.
- `rows`: the scenarios. Each is a function of a `Case`, registered under its number.
- `case`: what a scenario works with: a world on servers that it may stop, workers, a load, and the checks after it.
- `load`: jobs of several tenants at a steady rate whatever happens, and what became of them.
- `evidence`: all checks over one world, as figures and as a verdict.
- `site`: the servers, and the proxies before them.
- `runner`, `campaign`, `load_run`, `report`: `python -m tests.faults`, which writes docs/reliability.md.
"""
