"""What whole-system tests are made of: real worker processes, ledgers kept outside of the product, checks over them.

- `world`: a namespace and a Postgres schema of its own on real servers, its topics, its workers, its publisher.
- `jobs`, `handlers`: job types whose payload says what the handler does (take time, wait, fail, kill its process).
- `processes`: a worker process under control: kill, freeze, thaw, terminate.
- `ledger`: what was acknowledged, and each start and end of a handler, in files that are synced line by line.
- `sampler`: committed offsets as they were every 200 ms.
- `checks`: the promises, as questions to the evidence.
"""
