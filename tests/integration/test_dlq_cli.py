"""`pipeline dlq` as an operator runs it, on a real broker and a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.headers import parse_job
from pipeline.core.outcome import Failure
from pipeline.runtime.dlq import LetterNotFound
from tests.harness.waiting import wait_until
from tests.integration.desk_bench import DeskBench, payload
from tests.servers import TestServers
from tests.unit.letter_examples import MAIN, NOW, dead_record, job_id

pytestmark = pytest.mark.servers

HOSTILE = "\x1b[2J\x9b31m\u202egnp.exe\r\n\x07"
RED = Failure("shop.CardDeclined", f"declined {HOSTILE}", f"  File {HOSTILE}\n    line two\n")


@pytest.fixture
def bench(servers: TestServers) -> Iterator[DeskBench]:
    """Topics and tables, empty."""
    found = DeskBench(servers)
    found.create_topics()
    found.migrate()
    yield found
    found.remove()


@pytest.fixture(scope="module")
def letters(servers: TestServers) -> Iterator[DeskBench]:
    """Five letters that every test may look at, and none may replay."""
    found = DeskBench(servers)
    found.create_topics()
    found.migrate()
    found.bury(number=1, died_at=NOW + 1)
    found.bury(number=2, died_at=NOW + 2, tenant="globex", attempt=3, reason="rejected", failure=RED)
    found.bury(number=3, died_at=NOW + 3, value=b"not\x00avro", reason="undecodable")
    found.bury(number=4, died_at=NOW + 4, job_type="invoice.render")
    hostile = [
        ("pipeline-tenant", HOSTILE.encode()),
        ("x-note", HOSTILE.encode()),
        (HOSTILE, b"\xff\xfe"),
        ("x", None),
    ]
    record = dead_record(number=5, died_at=NOW + 5, value=HOSTILE.encode(), reason=HOSTILE)
    headers = [(name, value) for name, value in record.headers if name != "pipeline-tenant"] + hostile
    found.write([record._replace(headers=headers)], topic=found.names.dlq("default"))
    yield found
    found.remove()


def position(bench: DeskBench, number: int) -> str:
    (found,) = [
        record for record in bench.letters() if dict(record.headers)["ce_id"] == job_id(number).encode()
    ]
    return f"{found.partition}:{found.offset}"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


# --- list


def test_the_list_has_every_letter_the_newest_first(letters: DeskBench) -> None:
    code, out, err = letters.run("dlq", "list")
    assert (code, err) == (0, "5 dead letters\n")
    head, *rows = out.splitlines()
    assert head.split() == [
        "LETTER",
        "JOB",
        "TYPE",
        "TENANT",
        "REASON",
        "ATTEMPTS",
        "ERROR",
        "MESSAGE",
        "DEAD",
        "SINCE",
    ]
    assert [row.split()[1] for row in rows] == [job_id(n) for n in (5, 4, 3, 2, 1)]
    assert rows[4].split() == [
        *(position(letters, 1), job_id(1), "email.send", "acme", "max_attempts", "1", "ValueError", "boom"),
        *("2027-01-15", "08:00:01Z"),
    ]


def test_hostile_text_reaches_the_terminal_only_escaped(letters: DeskBench) -> None:
    out = letters.run("dlq", "list").out
    assert is_harmless(out)
    assert r"\x1b[2J\x9b31m\u202egnp.exe" in out
    shown = letters.run("dlq", "show", job_id(5))
    assert shown.code == 0
    assert is_harmless(shown.out)
    assert r"x-note: \x1b[2J\x9b31m\u202egnp.exe\x0d\x0a\x07" in shown.out
    assert "0xfffe" in shown.out
    assert is_harmless(letters.dlq("show", job_id(2)).out)
    assert is_harmless(letters.dlq("replay", "--all").out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--type", "invoice.render"], [4]),
        (["--tenant", "globex"], [2]),
        (["--reason", "rejected", "--reason", "undecodable"], [3, 2]),
        (["--error", "CardDeclined"], [2]),
        (["--error", "ValueError", "--type", "email.send", "--tenant", "acme"], [3, 1]),
        (["--limit", "2"], [5, 4]),
        (["--queue", "default", "--reason", "nothing-like-it"], []),
    ],
)
def test_filters_choose_letters(letters: DeskBench, arguments: list[str], expected: list[int]) -> None:
    ended = letters.dlq("list", "--json", *arguments)
    assert [letter["job_id"] for letter in ended.json()] == [job_id(n) for n in expected]


def test_the_list_as_json_has_every_fact(letters: DeskBench) -> None:
    (found,) = letters.dlq("list", "--json", "--tenant", "globex").json()
    assert f"{found.pop('partition')}:{found.pop('offset')}" == position(letters, 2)
    assert found == {
        "queue": "default",
        "job_id": job_id(2),
        "type": "email.send",
        "tenant": "globex",
        "reason": "rejected",
        "attempts": 3,
        "hop": 0,
        "replays": 0,
        "error_class": "shop.CardDeclined",
        "error_message": RED.message,
        "schema": payload()[2:10].hex(),
        "size": len(payload()),
        "dead_since": "2027-01-15T08:00:02.000+00:00",
        "first_record": {"topic": MAIN, "partition": 2, "offset": 40},
        "last_record": {"topic": MAIN, "partition": 2, "offset": 40},
        "written_by": "pipeline",
        "malformed": False,
        "state": "open",
        "state_since": None,
        "task": None,
    }


def test_an_empty_dlq_says_so(bench: DeskBench) -> None:
    assert bench.dlq("list") == (0, "", "no dead letters\n")
    assert bench.dlq("list", "--tenant", "acme") == (0, "", "no dead letter fits\n")
    assert bench.dlq("replay", "--all", "--execute") == (
        0,
        "nothing selected: no dead letter fits\n",
        "",
    )


# --- show


def test_a_letter_is_shown_with_payload_headers_and_errors(letters: DeskBench) -> None:
    code, out, _ = letters.run("dlq", "show", job_id(1).upper())
    assert code == 0
    assert f"letter      {position(letters, 1)} of {letters.names.dlq('default')}" in out
    assert "email.send v2, fingerprint " in out
    assert '"subject": "Your order"' in out
    assert "  pipeline-reason: max_attempts" in out
    assert (
        "last error, 2027-01-15 08:00:01Z, at record jobs.default.normal 2:40, by group jobs.default" in out
    )
    assert '  ValueError: boom\n      File "handlers.py", line 3, in handle' in out
    assert "the store does not know this job" in out


def test_a_letter_is_found_by_its_position(letters: DeskBench) -> None:
    assert f"job         {job_id(4)}" in letters.dlq("show", position(letters, 4)).out


def test_an_undecodable_payload_is_shown_as_it_is_with_the_reason(letters: DeskBench) -> None:
    shown = letters.dlq("show", job_id(3)).out
    assert "payload: 8 bytes that cannot be decoded: email.send: not Avro single-object encoding" in shown
    assert r"  not\x00avro" in shown


def test_bytes_that_are_no_text_are_shown_in_hex(bench: DeskBench) -> None:
    bench.bury(value=bytes(range(240, 256)) * 40)
    shown = bench.dlq("show", job_id(1)).out
    assert "  0000  f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 fa fb fc fd fe ff" in shown
    assert "... 128 bytes more" in shown


def test_show_tries_the_job_type_of_the_application(letters: DeskBench, tmp_path: Path) -> None:
    (tmp_path / "strict.py").write_text(
        "from pydantic import field_validator\n"
        "from pipeline import Pipeline\n"
        "from pipeline.demo.jobs import SendEmail\n"
        "class Strict(SendEmail):\n"
        "    @field_validator('subject')\n"
        "    @classmethod\n"
        "    def check(cls, value: str) -> str:\n"
        "        raise ValueError(value)\n"
        "app = Pipeline()\n"
        "app.job_type('email.send', Strict)\n"
    )
    shown = letters.run("dlq", "show", job_id(1), "--app", "strict:app", PYTHONPATH=str(tmp_path))
    assert shown.code == 0, shown.err
    assert '"subject": "Your order"' in shown.out
    assert (
        "refused by the job type of today: email.send: Strict refuses a payload of email.send v2" in shown.out
    )


def test_without_postgres_a_letter_is_shown_and_what_is_missing_is_told(letters: DeskBench) -> None:
    shown = letters.dlq("show", job_id(1), PIPELINE_POSTGRES__DSN="postgresql://x@127.0.0.1:1/x")
    assert shown.code == 0
    assert '"subject": "Your order"' in shown.out
    assert (
        "attempts are not shown, Postgres did not answer: Postgres at 127.0.0.1:1, database x:" in shown.out
    )


@pytest.mark.parametrize("reference", [job_id(99), "0:999", "77:0"])
def test_a_letter_that_is_not_there_is_named(letters: DeskBench, reference: str) -> None:
    with pytest.raises(LetterNotFound) as missing:
        letters.dlq("show", reference)
    assert str(missing.value) == f"no dead letter {reference} in {letters.names.dlq('default')}"


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nonsense"], "'nonsense' names no letter; allowed: a job id (UUID), or PARTITION:OFFSET"),
        (["replay", "--id", "1:x"], "'1:x' names no letter"),
        (["replay"], "which letters?"),
        (["replay", "--execute", "--queue", "default"], "which letters?"),
        (["replay", "--all", "--tenant", "acme"], "--all leaves nothing to choose"),
        (["list", "--limit", "0"], "0 is not in the range"),
    ],
)
def test_what_makes_no_sense_is_refused(letters: DeskBench, arguments: list[str], message: str) -> None:
    code, out, err = letters.dlq(*arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_an_unknown_queue_is_refused(letters: DeskBench) -> None:
    assert letters.run("dlq", "list", "--queue", "gpu") == (
        *(1, ""),
        "pipeline: queue is 'gpu'; allowed by the settings: default\n",
    )


def test_a_missing_dlq_topic_is_named(servers: TestServers) -> None:
    code, _, err = DeskBench(servers).run("dlq", "list", PIPELINE_NAMESPACE="nowhere")
    assert code == 1
    assert "topics missing: nowhere.default.dlq; `pipeline topics apply` creates them" in err


def test_a_broker_that_is_away_is_told_within_the_timeout(letters: DeskBench) -> None:
    away = {"PIPELINE_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "PIPELINE_KAFKA__REQUEST_TIMEOUT": "1"}
    code, _, err = letters.run("dlq", "list", **away)
    assert code == 1
    assert "pipeline: no answer from Kafka at 127.0.0.1:1 within 1 s" in err


# --- replay


def test_a_plan_says_what_would_be_done_and_sends_nothing(letters: DeskBench) -> None:
    code, out, err = letters.run("dlq", "replay", "--all")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    target = letters.names.main("default")
    assert ["email.send", "acme", target, "2", "1"] in rows
    assert ["email.send", "globex", target, "1", "0"] in rows
    assert ["email.send", "unknown", target, "1", "1"] in rows
    assert "to replay: 5 of 5 dead letters selected; nothing was sent, --execute does it" in out
    assert "undecodable here: 3, replayed all the same" in out
    assert letters.replayed() == []


def test_a_replay_sends_the_same_bytes_under_the_same_key(bench: DeskBench) -> None:
    bench.bury(number=1, attempt=3, hop=2, replays=1)
    bench.bury(number=2, tenant="globex")
    code, out, err = bench.run("dlq", "replay", "--tenant", "acme", "--execute")
    assert (code, err) == (0, "")
    assert "replayed: 1 of 1 dead letter selected" in out
    (sent,) = bench.replayed()
    assert (sent.key, sent.value) == (b"acme", payload())
    job, problem = parse_job(sent, queue="default")
    assert (problem, job.job_id, job.attempt, job.hop, job.replays) == ("", job_id(1), 1, 3, 2)
    assert not [name for name, _ in sent.headers if name.startswith(("pipeline-first", "pipeline-last"))]
    assert len(bench.letters()) == 2


def test_letters_are_replayed_by_id_and_by_position(bench: DeskBench) -> None:
    for number in (1, 2, 3):
        bench.bury(number=number)
    named = ("--id", job_id(1), "--id", position(bench, 3))
    assert bench.dlq("replay", *named, "--execute").code == 0
    assert sorted(parse_job(sent, queue="default").job.job_id for sent in bench.replayed()) == [
        job_id(1),
        job_id(3),
    ]


def test_an_id_without_a_letter_is_told_and_the_others_are_replayed(bench: DeskBench) -> None:
    bench.bury(number=1)
    code, out, err = bench.run("dlq", "replay", "--id", job_id(1), "--id", job_id(9), "--execute")
    assert (code, err) == (1, f"not found: {job_id(9)}\n")
    assert "replayed: 1 of 1 dead letter selected" in out


def test_a_letter_that_cannot_be_sent_is_told_with_exit_code_1(servers: TestServers) -> None:
    bench = DeskBench(servers)
    bench.create_topics(only=lambda topic: not topic.endswith(".normal"))
    bench.migrate()
    try:
        bench.bury()
        code, out, err = bench.run("dlq", "replay", "--all", "--execute", PIPELINE_PUBLISHER__TIMEOUT="6")
        assert code == 1
        assert "replayed: 0 of 1 dead letter selected" in out
        assert "not sent: 1; to replay again is safe:" in err
        assert f"job {job_id(1)}: topic {bench.names.main('default')} does not exist" in err
        assert "given up: nothing of the last batch was taken" in err
    finally:
        bench.remove()


def test_without_postgres_letters_are_looked_at_and_none_is_replayed(bench: DeskBench) -> None:
    away = {"PIPELINE_POSTGRES__DSN": "host=127.0.0.1 port=1"}
    bench.bury()
    replayed = bench.run("dlq", "replay", "--all", "--execute", **away)
    assert (replayed.code, replayed.out) == (1, "")
    assert "pipeline: Postgres at 127.0.0.1:1" in replayed.err
    assert bench.replayed() == []

    listed = bench.run("dlq", "list", **away)
    assert listed.code == 0
    assert job_id(1) in listed.out
    assert "read from the topics alone, for Postgres did not answer: Postgres at 127.0.0.1:1" in listed.err
    shown = bench.run("dlq", "show", "0:0" if position(bench, 1) == "0:0" else job_id(1), **away)
    assert shown.code == 0
    assert "attempts are not shown, Postgres did not answer" in shown.out


def test_with_several_queues_each_letter_goes_home(servers: TestServers) -> None:
    bench = DeskBench(servers, queues=("default", "gpu"))
    bench.create_topics()
    bench.migrate()
    try:
        bench.bury("default", number=1)
        bench.bury("gpu", number=2, died_at=NOW + 9)
        rows = bench.dlq("list").out.splitlines()
        assert [row.split()[0] for row in rows] == ["QUEUE", "gpu", "default"]
        ambiguous = bench.run("dlq", "show", "0:0")
        assert ambiguous == (1, "", "pipeline: in which queue is 0:0? There are 2: default, gpu\n")
        assert bench.dlq("replay", "--all", "--queue", "gpu", "--execute").code == 0
        assert (len(bench.replayed("gpu")), bench.replayed("default")) == (1, [])
        assert bench.dlq("replay", "--all", "--execute").code == 0
        assert (len(bench.replayed("gpu")), len(bench.replayed("default"))) == (1, 1)
    finally:
        bench.remove()


# --- with a worker


def test_jobs_that_died_run_once_their_bug_is_fixed_and_are_not_replayed_again(
    bench: DeskBench, tmp_path: Path
) -> None:
    bug = tmp_path / "bug"
    bug.touch()
    publish = ("publish", "email.send", "-", "--tenant", "acme", "--app", "tests.integration.desk_jobs")
    mail = '{"to": "ada@example.test", "subject": "Hello", "body": "."}'
    published = bench.run(*publish[:2], mail, *publish[3:]).json()
    with bench.worker("tests.integration.desk_jobs", tmp_path / "log", DESK_BUG=str(bug)):
        # Its record is in the topic a moment earlier.
        wait_until(lambda: bench.job_states() == {"dead": 1}, "the job is dead")
        shown = bench.run("dlq", "show", published["job_id"]).out
        assert "the job is dead now; its runs:" in shown
        assert r"MailboxFull: no room for ada@example.test nor for \x1b[31manyone\x1b[0m else" in shown

        bug.unlink()
        for _ in range(2):  # twice at once: whichever record comes first runs, the other is a duplicate
            assert bench.run("dlq", "replay", "--all", "--execute").code == 0
        story = ("job", "show", published["job_id"], "--json")
        wait_until(lambda: bench.run(*story).json()["state"] == "completed", "the job is completed")
    runs = bench.run(*story).json()["runs"]
    assert [(run["attempt"], run["outcome"]) for run in runs] == [
        (1, "failed"),
        (2, "dead"),
        (1, "completed"),
    ]

    again = bench.dlq("replay", "--all", "--execute").out
    assert again == "replayed: 0 of 1 dead letter selected\nalready replayed: 1, left out\n"


def test_a_replay_never_chases_the_letters_that_it_causes(bench: DeskBench, tmp_path: Path) -> None:
    count, value = 3000, payload()
    letters = [dead_record(number=n, value=value) for n in range(1, count + 1)]
    bench.write(letters, topic=bench.names.dlq("default"))
    bug = tmp_path / "bug"
    bug.touch()
    environment = {"DESK_BUG": str(bug), "DESK_ATTEMPTS": "1", "PIPELINE_LOG__MOVES": "false"}
    with bench.worker("tests.integration.desk_jobs", tmp_path / "log", **environment):
        bench.write([dead_record(number=count + 1, value=value)], topic=bench.names.main("default"))
        # Until it is settled its letter would be left out.
        wait_until(lambda: bench.job_states() == {"dead": 1}, "the worker works")
        replayed = bench.run("dlq", "replay", "--reason", "max_attempts", "--execute")
        assert f"replayed: {count + 1} of {count + 1} dead letters selected" in replayed.out
        wait_until(lambda: len(bench.letters()) >= 2 * (count + 1), "every replayed job died again")
    assert len(bench.letters()) == 2 * (count + 1)
    plan = bench.dlq("replay", "--all").out
    assert f"to replay: {count + 1} of {2 * (count + 1)} dead letters selected" in plan
    assert f"already replayed: {count + 1}, left out" in plan
