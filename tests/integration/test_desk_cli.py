"""The verbs of the dead-letter desk as an operator uses them, on real servers, with real processes that are stopped and killed."""

from __future__ import annotations

import base64
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.core.headers import parse_job
from pipeline.core.job import Record
from pipeline.core.topics import TopicSpec
from pipeline.errors import InvalidJob, SchemaError
from tests.harness.commands import Ended
from tests.harness.waiting import wait_until
from tests.integration.desk_bench import ROOT, DeskBench, payload
from tests.servers import TestServers
from tests.unit.foreign_letters import connect_headers, foreign_record, spring_headers
from tests.unit.letter_examples import NOW, dead_record, job_id

pytestmark = pytest.mark.servers

NEW = '{"to": "ada@example.test", "subject": "Corrected", "body": "."}'


@pytest.fixture
def bench(servers: TestServers) -> Iterator[DeskBench]:
    """Topics and tables, empty."""
    found = DeskBench(servers)
    found.create_topics()
    found.migrate()
    yield found
    found.remove()


def bury(bench: DeskBench, count: int) -> None:
    value = payload()
    letters = [dead_record(number=n, value=value, tenant=f"tenant-{n % 7}") for n in range(1, count + 1)]
    bench.write(letters, topic=bench.names.dlq("default"))


def replayed_ids(bench: DeskBench) -> Counter[tuple[str, int]]:
    """Job ids and hops in the main topic."""
    jobs = [parse_job(record, queue="default").job for record in bench.replayed()]
    return Counter((job.job_id, job.hop) for job in jobs)


@contextmanager
def running(bench: DeskBench, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`pipeline ARGUMENTS` under way."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments],
        env=bench.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def end(process: subprocess.Popen[str]) -> Ended:
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out, err)


# --- stopped, killed, resumed


def test_a_replay_that_is_killed_goes_on_where_it_was_and_every_job_runs_once(
    bench: DeskBench, tmp_path: Path
) -> None:
    bury(bench, 400)
    with running(bench, "dlq", "replay", "--all", "--execute", "--rate", "20", "--why", "a fix") as process:
        wait_until(lambda: len(bench.replayed()) > 20, "the replay is under way")
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    before = len(bench.replayed())
    assert before < 400
    wait_until(
        lambda: json.loads(bench.dlq("audit", "--json").out)[0]["state"] == "interrupted",
        "nobody holds the task",
    )
    resumed = bench.run("dlq", "replay", "--resume", "1")
    assert (resumed.code, resumed.out) == (0, "replayed: 400 (task 1)\n")
    sent = replayed_ids(bench)
    assert set(sent) == {(job_id(n), 1) for n in range(1, 401)}
    # What the killed process had sent and not marked: one batch, and the one before if that was being marked.
    assert sent.total() <= 400 + 2 * 4

    with bench.worker("tests.integration.desk_jobs", tmp_path / "log", DESK_BUG=str(tmp_path / "none")):
        wait_until(lambda: bench.job_states() == {"completed": 400}, "every job has run")
    assert bench.runs() == Counter({1: 400})
    assert bench.dlq("replay", "--all").out.startswith("to replay: 0 of 400 dead letters selected")


def test_two_replays_at_once_share_the_letters(bench: DeskBench) -> None:
    bury(bench, 300)
    assert bench.dlq("stats").code == 0  # the index is complete: both begin at once
    arguments = ("dlq", "replay", "--all", "--execute", "--rate", "100")
    with running(bench, *arguments) as first, running(bench, *arguments) as second:
        ends = [end(first), end(second)]
    assert [ended.code for ended in ends] == [0, 0], ends
    sent = replayed_ids(bench)
    assert sent == {(job_id(n), 1): 1 for n in range(1, 301)}
    tasks = bench.dlq("audit", "--json").json()
    assert sum(task["counts"].get("sent", 0) for task in tasks) == 300
    assert bench.dlq("replay", "--all", "--execute").out.startswith("replayed: 0 of 300")


def test_ctrl_c_ends_after_the_batch_and_says_how_to_go_on(bench: DeskBench) -> None:
    bury(bench, 300)
    with running(bench, "dlq", "replay", "--all", "--execute", "--rate", "10") as process:
        wait_until(lambda: len(bench.replayed()) > 10, "the replay is under way")
        process.send_signal(signal.SIGINT)
        stopped = end(process)
    assert stopped.code == 130
    assert "task 1 is not done; to go on: pipeline dlq replay --resume 1" in stopped.err
    sent = len(bench.replayed())
    assert f"replayed: {sent} of 300 dead letters selected (task 1)" in stopped.out
    assert bench.dlq("audit", "--json").json()[0]["state"] == "paused"
    assert bench.run("dlq", "replay", "--resume", "1").out == "replayed: 300 (task 1)\n"
    assert replayed_ids(bench) == {(job_id(n), 1): 1 for n in range(1, 301)}


def test_order_of_a_key_is_kept_whatever_the_batches(bench: DeskBench) -> None:
    letters = [dead_record(number=n, value=b"%d" % n) for n in range(1, 2501)]
    bench.write(letters, topic=bench.names.dlq("default"))
    assert bench.dlq("replay", "--all", "--execute", "--max-lag", "0").code == 0
    assert [record.value for record in bench.replayed()] == [b"%d" % n for n in range(1, 2501)]


# --- not too fast


def test_a_rate_is_kept(bench: DeskBench) -> None:
    bury(bench, 100)
    bench.dlq("list")
    started = time.monotonic()
    assert bench.dlq("replay", "--all", "--execute", "--rate", "40").code == 0
    assert time.monotonic() - started >= 2.0
    assert len(bench.replayed()) == 100


def test_it_holds_back_while_nobody_works_and_tells_machines_why_in_json(bench: DeskBench) -> None:
    bury(bench, 500)
    with running(bench, "dlq", "replay", "--all", "--execute", "--max-lag", "50") as process:
        # A slow start may be told of before it holds back.
        lines = map(json.loads, process.stderr)  # type: ignore[arg-type]
        line = next(each for each in lines if "holding" in each)
        process.send_signal(signal.SIGINT)
        stopped = end(process)
    assert stopped.code == 130
    assert (line["action"], line["task"], line["total"]) == ("replay_progress", 1, 500)
    assert line["holding"].startswith(f"the workers of {bench.names.main('default')} are ")
    assert 50 < len(bench.replayed()) == line["sent"] <= 100


def test_a_terminal_sees_a_bar(bench: DeskBench) -> None:
    bury(bench, 30)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "dlq", "replay", "--all", "--execute", "--rate", "20"],
        env={**bench.environment, "TERM": "xterm", "COLUMNS": "100"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := _read_terminal(ours):
            shown += chunk
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
    assert b"/30" in shown
    assert b"replay" in shown
    assert b"replay_progress" not in shown


def _read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side is closed
        return b""


# --- letters of others


def test_letters_of_spring_and_connect_are_listed_and_go_home(bench: DeskBench) -> None:
    home, theirs = f"{bench.name}-orders", f"{bench.name}-orders-dlt"
    bench.admin().create([TopicSpec(home, 2, 1), TopicSpec(theirs, 1, 1)])
    try:
        bench.write([foreign_record(spring_headers(topic=home))], topic=theirs)
        bench.write([foreign_record(connect_headers(topic=home), key=None)], topic=bench.names.dlq("default"))
        own = {"PIPELINE_DLQ__TOPICS": theirs}
        listed = bench.dlq("list", "--json", **own).json()
        assert {(each["queue"], each["written_by"], each["error_class"]) for each in listed} == {
            (theirs, "spring", "com.example.shop.OutOfStock"),
            ("default", "connect", "org.apache.kafka.connect.errors.DataException"),
        }
        assert {each["last_record"]["offset"] for each in listed} == {2**33, 17}
        shown = bench.dlq("show", "0:0", "--queue", theirs, **own).out
        assert f"written by  spring; came from {home}" in shown
        assert "Listener failed; no widget left" in shown
        for sent in (2, 0):
            ended = bench.dlq("replay", "--all", "--execute", **own)
            assert (ended.code, f"replayed: {sent} of 2 dead letters selected" in ended.out) == (0, True)
        records = bench.read(home)
        assert sorted((record.key or b"", record.value) for record in records) == [
            (b"", b'{"widget": 7}'),
            (b"order-7", b'{"widget": 7}'),
        ]
        names = {name for record in records for name, _ in record.headers}
        assert names == {"tenant-of-theirs", "pipeline-replays", "pipeline-letter"}
    finally:
        bench.admin().delete([home, theirs])


# --- another payload


def test_a_payload_is_corrected_and_the_old_one_kept(bench: DeskBench) -> None:
    bench.bury(number=1, hop=2)
    edit = ("edit", job_id(1), "--app", "tests.integration.desk_jobs", "--payload")
    planned = bench.dlq(*edit, NEW, DESK_BUG="none")
    assert '"subject": "Your order"' in planned.out
    assert '"subject": "Corrected"' in planned.out
    assert bench.replayed() == []
    assert bench.dlq(*edit, NEW, "--execute", DESK_BUG="none").code == 2  # --why is missing
    done = bench.dlq(*edit, NEW, "--execute", "--why", "a typo", "--who", "ada")
    assert (done.code, done.out) == (0, "replayed: 1 of 1 dead letter selected (task 1)\n")
    (sent,) = bench.replayed()
    assert (sent.key, sent.value) == (b"acme", payload_of(NEW))
    assert parse_job(sent, queue="default").job.hop == 3
    told = bench.dlq("audit", "1", "--json").json()
    assert (told["kind"], told["who"], told["why"]) == ("edit", "ada", "a typo")
    assert bytes.fromhex(told["old_value"]) == payload()
    assert bytes.fromhex(told["new_value"]) == sent.value
    again = bench.run("dlq", *edit, NEW, "--execute", "--why", "again")
    assert again.code == 1
    assert "is replayed by task 1; allowed: one that is open or parked" in again.err


@pytest.mark.parametrize(
    ("given", "message"),
    [("{", "payload is not JSON"), ('{"to": 7}', "payload of job type 'email.send': to: Input should be")],
)
def test_a_payload_that_the_job_type_refuses_is_not_sent(bench: DeskBench, given: str, message: str) -> None:
    bench.bury(number=1)
    with pytest.raises(InvalidJob, match=message):
        bench.dlq(
            "edit",
            job_id(1),
            "--app",
            "tests.integration.desk_jobs",
            "--payload",
            given,
            "--execute",
            "--why",
            "w",
        )
    assert bench.replayed() == []


def payload_of(text: str) -> bytes:
    return payload(json.loads(text)["subject"], body=json.loads(text)["body"])


# --- looking


def test_pages_follow_one_another_to_the_last(bench: DeskBench) -> None:
    for number in range(1, 8):
        bench.bury(number=number, died_at=NOW + number // 2)  # some died at the same time
    seen: list[str] = []
    after: tuple[str, ...] = ()
    while True:
        page = bench.dlq("list", "--json", "--limit", "3", *after)
        seen += [letter["job_id"] for letter in page.json()]
        if "more: --after " not in page.err:
            break
        after = ("--after", page.err.split("more: --after ")[1].split()[0])
    assert len(seen) == len(set(seen)) == 7
    assert bench.run("dlq", "list", "--after", "nonsense").code == 2


def test_letters_are_chosen_by_schema_time_and_message(bench: DeskBench) -> None:
    bench.bury(number=1, died_at=NOW)
    bench.bury(number=2, died_at=NOW + 3600, value=b"\x00\x00\x00\x00\x07x")
    newest = payload()[2:10].hex()
    for arguments, expected in (
        (["--schema", newest], [1]),
        (["--schema", "email.send:2"], [1]),
        (["--schema", "2", "--type", "email.send"], [1]),
        (["--schema", "email.send:1"], []),
        (["--schema", "id:7"], [2]),
        (["--since", "2027-01-15T08:30"], [2]),
        (["--until", "2027-01-15T08:30:00+00:00"], [1]),
        (["--search", "BOOM"], [2, 1]),
        (["--search", "%"], []),
    ):
        found = bench.dlq("list", "--json", *arguments).json()
        assert [letter["job_id"] for letter in found] == [job_id(n) for n in expected], arguments
    with pytest.raises(SchemaError, match=r"email\.send has no version 99"):
        bench.dlq("list", "--schema", "email.send:99")
    assert bench.dlq("list", "--schema", "newest").code == 2
    assert "allowed: ISO 8601" in bench.dlq("list", "--since", "yesterday").err


def test_an_export_has_letters_whole(bench: DeskBench, tmp_path: Path) -> None:
    bench.bury(number=1)
    bench.bury(number=2, value=b"\xff\xfe")
    out = tmp_path / "letters.jsonl"
    assert bench.dlq("export", "--out", str(out)).err == "exported: 2 dead letters\n"
    letters = {line["job_id"]: line for line in map(json.loads, out.read_text().splitlines())}
    good, bad = letters[job_id(1)], letters[job_id(2)]
    assert base64.b64decode(good["value"]) == payload()
    assert (good["payload"]["subject"], good["payload_schema"]) == ("Your order", "email.send v2")
    assert (base64.b64decode(bad["value"]), bad["payload"]) == (b"\xff\xfe", None)
    assert {"name": "pipeline-reason", "value": "bWF4X2F0dGVtcHRz", "text": "max_attempts"} in bad["headers"]
    assert len(bench.dlq("export", "--id", job_id(2)).out.splitlines()) == 1


def test_the_show_has_a_timeline_with_who_did_what(bench: DeskBench) -> None:
    bench.bury(number=1)
    assert bench.dlq("replay", "--all", "--execute", "--who", "ada", "--why", "a fix").code == 0
    shown = bench.dlq("show", job_id(1)).out
    timeline = shown[shown.index("timeline") :]
    assert "enqueued" in timeline
    assert "died: max_attempts" in timeline
    assert "replayed by task 1, of ada (a fix), as " in timeline
    assert "state       replayed since " in shown


# --- set aside


def test_letters_are_parked_discarded_and_opened_again(bench: DeskBench) -> None:
    for number in (1, 2, 3):
        bench.bury(number=number)
    assert bench.dlq("park", "--id", job_id(1)).out.endswith(
        "to be parked: 1 dead letter; --execute does it\n"
    )
    assert bench.dlq("park", "--id", job_id(1), "--execute").out == "parked: 1 dead letter (task 1)\n"
    assert bench.dlq("discard", "--id", job_id(2), "--execute").code == 2
    discard = bench.dlq("discard", "--id", job_id(2), "--execute", "--why", "a test of ours")
    assert discard.out == "discarded: 1 dead letter (task 2)\n"
    plan = bench.dlq("replay", "--all").out
    assert "to replay: 1 of 3 dead letters selected" in plan
    assert "parked: 1, left out; --parked takes them, too" in plan
    assert "discarded: 1, left out" in plan
    assert len(bench.dlq("list", "--json").json()) == 2
    assert bench.dlq("reopen", "--all", "--execute").out == "opened again: 2 dead letters (task 3)\n"
    assert "replayed: 3 of 3 dead letters selected" in bench.dlq("replay", "--all", "--execute").out
    assert bench.dlq("purge", "--older-than", "90d").out == (
        "default: forgotten: 0 dead letters; outcomes of tasks: 0\n"
    )
    told = bench.dlq("audit").out
    assert [line.split()[1] for line in told.splitlines()[1:]] == ["replay", "reopen", "discard", "park"]
    assert "a test of ours" in told


def test_a_reason_that_fits_nothing_is_explained(bench: DeskBench) -> None:
    bench.bury(number=1)
    planned = bench.dlq("replay", "--reason", "we fixed the bug")
    assert planned.out == "nothing selected: no dead letter fits\n"
    assert (
        "--reason chooses letters that died for we fixed the bug; to say why you do it there is --why"
        in planned.err
    )


def test_what_makes_no_sense_is_refused(bench: DeskBench) -> None:
    assert bench.dlq("replay", "--resume", "1", "--all").code == 2
    assert "there is no task 9" in bench.run("dlq", "replay", "--resume", "9").err
    assert "there is no task 9" in bench.run("dlq", "audit", "9").err
    assert (
        "--to is 'orders'; allowed: a main topic" in bench.run("dlq", "replay", "--all", "--to", "orders").err
    )
    assert bench.dlq("purge", "--older-than", "soon").code == 2
    bench.write([Record("", 0, 0, b"k", b"v", [], NOW)], topic=bench.names.dlq("default"))
    reference = bench.dlq("list", "--json").json()[0]
    named = f"{reference['partition']}:{reference['offset']}"
    refused = bench.run("dlq", "edit", named, "--payload", "{}", "--app", "tests.integration.desk_jobs")
    assert "carries no job that could run: header ce_id is missing" in refused.err


# --- counted


def test_letters_are_counted_by_what_they_have_in_common(bench: DeskBench) -> None:
    assert bench.dlq("stats").out == "no dead letters\n"
    bury(bench, 14)
    bench.bury(number=20, tenant="acme", job_type="invoice.render", reason="permanent")
    head, _, titles, *rows = bench.dlq("stats").out.splitlines()
    assert head == "open 15"
    assert titles.split() == ["TYPE", "ERROR", "LETTERS", "OLDEST", "NEWEST"]
    assert [(row.split()[0], row.split()[2]) for row in rows] == [
        ("email.send", "14"),
        ("invoice.render", "1"),
    ]
    by_tenant = bench.dlq("stats", "--by", "tenant", "--type", "email.send", "--limit", "3", "--json").json()
    assert [(group["tenant"], group["letters"]) for group in by_tenant["groups"]] == [
        (f"tenant-{n}", 2) for n in range(3)
    ]


def test_letters_are_counted_by_what_became_of_them(bench: DeskBench) -> None:
    bury(bench, 14)
    assert bench.dlq("replay", "--tenant", "tenant-0", "--execute").code == 0
    assert bench.dlq("park", "--tenant", "tenant-1", "--why", "later", "--execute").code == 0
    assert bench.dlq("stats", "--json").json()["states"] == {"open": 10, "parked": 2, "replayed": 2}
    found = bench.dlq("stats", "--by", "tenant", "--state", "replayed", "--json").json()["groups"]
    assert [(group["tenant"], group["letters"]) for group in found] == [("tenant-0", 2)]


def test_letters_that_the_topic_deletes_soon_are_warned_of(bench: DeskBench) -> None:
    bench.write([dead_record(died_at=time.time() - 100)], topic=bench.names.dlq("default"))
    assert bench.dlq("stats").err == ""
    bench.admin().set_config(bench.names.dlq("default"), {"retention.ms": "150000"})
    warning = "default: 1 dead letter will be deleted by the topic soon, which keeps records for 2 min 30 s"
    wait_until(lambda: warning in bench.dlq("stats").err, "the broker knows the retention")
