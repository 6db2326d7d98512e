"""Settings: where they come from, what is refused, what is shown."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.cli.common import Session
from pipeline.cli.config import command, describe
from pipeline.config import Settings, WorkerSettings, load_settings, mask_dsn, setting_keys, show
from pipeline.config.docs import configuration_page
from pipeline.core.topics import TopicSettings
from pipeline.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PIPELINE_")]:
        monkeypatch.delenv(name)


def refusal(
    environ: dict[str, str] | None = None, overrides: dict[str, object] | None = None, file: str = ""
) -> list[str]:
    """The lines of the error that these settings give."""
    if file:
        Path("pipeline.toml").write_text(file)
    with pytest.raises(ConfigError) as caught:
        load_settings(overrides, environ=environ or {})
    return str(caught.value).splitlines()


# --- where values come from


def test_without_anything_given_every_setting_has_its_default() -> None:
    settings = load_settings(environ={})
    assert settings == Settings()
    assert settings.origins == {}
    assert settings.retry.tiers == (10.0, 60.0, 600.0, 3600.0)


def test_a_flag_wins_over_the_environment_which_wins_over_the_file() -> None:
    Path("pipeline.toml").write_text("[worker]\nconcurrency = 1\nbatch_max = 1\npoll_batch = 1\n")
    environ = {"PIPELINE_WORKER__CONCURRENCY": "2", "PIPELINE_WORKER__BATCH_MAX": "2"}
    settings = load_settings({"worker.concurrency": "3"}, environ=environ)
    worker = settings.worker
    assert (worker.concurrency, worker.batch_max, worker.poll_batch, worker.buffer_jobs) == (3, 2, 1, 5000)
    assert settings.origins == {
        "worker.concurrency": "flag --set worker.concurrency",
        "worker.batch_max": "env PIPELINE_WORKER__BATCH_MAX",
        "worker.poll_batch": "file pipeline.toml",
    }


def test_the_file_may_be_named_by_an_argument_or_by_the_environment(tmp_path: Path) -> None:
    Path("pipeline.toml").write_text('namespace = "from-here"\n')
    (tmp_path / "a.toml").write_text('namespace = "a"\n')
    (tmp_path / "b.toml").write_text('namespace = "b"\n')
    environ = {"PIPELINE_CONFIG": str(tmp_path / "a.toml")}
    assert load_settings(environ={}).namespace == "from-here"
    assert load_settings(environ=environ).namespace == "a"
    assert load_settings(environ=environ, config_file=tmp_path / "b.toml").namespace == "b"


def test_building_settings_directly_reads_neither_environment_nor_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIPELINE_NAMESPACE", "env")
    Path("pipeline.toml").write_text('namespace = "file"\n')
    assert Settings().namespace == "jobs"
    assert load_settings().namespace == "env"
    assert Settings().namespace == "jobs"


def test_settings_are_frozen() -> None:
    settings = Settings()
    for frozen, name in ((settings, "namespace"), (settings.worker, "lease")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(frozen, name, 1)


def _as_text(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


@pytest.mark.parametrize("text", ["a,b", " a , b ", '["a", "b"]', "a,b,"])
def test_a_list_in_the_environment_has_commas_or_is_json(text: str) -> None:
    assert load_settings(environ={"PIPELINE_QUEUES": text}).queues == ("a", "b")


def test_every_setting_can_be_given_by_its_environment_variable() -> None:
    values = {
        "namespace": "a",
        "schemas_dir": "a",
        "queues": "a",
        "kafka.group": "a",
        "postgres.dsn": "host=a",
    }
    for key, setting in setting_keys().items():
        given = "a=b" if setting.options else values.get(key) or _as_text(setting.default)
        origins = load_settings(environ={setting.env: given}).origins
        assert list(origins.values()) == [f"env {setting.env}"], key


def test_the_port_can_be_switched_off() -> None:
    for value in ("off", "-1", -1):
        assert load_settings({"worker.http_port": value}, environ={}).worker.http_port is None


# --- options of librdkafka


def test_options_of_librdkafka_are_merged_one_by_one() -> None:
    Path("pipeline.toml").write_text(
        "[kafka.options]\n"
        'security.protocol = "SSL"\n'
        '"socket.timeout.ms" = 9000\n'
        '"enable.ssl.certificate.verification" = true\n'
        '"client.id" = "file"\n'
    )
    environ = {"PIPELINE_KAFKA__OPTIONS__CLIENT_ID": "env", "PIPELINE_KAFKA__CONSUMER_OPTIONS": "a.b=1,c=x,y"}
    settings = load_settings({"kafka.options.sasl.username": "me"}, environ=environ)
    assert settings.kafka.options == {
        "security.protocol": "SSL",
        "socket.timeout.ms": "9000",
        "enable.ssl.certificate.verification": "true",
        "client.id": "env",
        "sasl.username": "me",
    }
    assert settings.kafka.consumer_options == {"a.b": "1", "c": "x,y"}


def test_options_may_be_json() -> None:
    settings = load_settings(environ={"PIPELINE_KAFKA__OPTIONS": '{"a.b": 1, "c": true}'})
    assert settings.kafka.options == {"a.b": "1", "c": "true"}


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"a": [1]}', '{"a"'])
def test_options_that_cannot_be_read_are_refused(text: str) -> None:
    (line,) = refusal({"PIPELINE_KAFKA__OPTIONS": text})
    assert line.startswith("PIPELINE_KAFKA__OPTIONS cannot be read; allowed: key=value")


# --- secrets


def test_secrets_may_be_read_from_files(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://u:geheim@db/jobs\n")
    (tmp_path / "sasl").write_text("pass word\n")
    environ = {
        "PIPELINE_POSTGRES__DSN_FILE": str(tmp_path / "dsn"),
        "PIPELINE_KAFKA__OPTIONS__SASL_PASSWORD_FILE": str(tmp_path / "sasl"),
    }
    settings = load_settings(environ=environ)
    assert settings.postgres.dsn.get_secret_value() == "postgresql://u:geheim@db/jobs"
    assert settings.kafka.options == {"sasl.password": "pass word"}
    assert settings.origins["postgres.dsn"] == "env PIPELINE_POSTGRES__DSN_FILE"


def test_a_secret_file_that_cannot_be_read_is_named() -> None:
    (line,) = refusal({"PIPELINE_POSTGRES__DSN_FILE": "/nowhere/dsn"})
    assert (
        line
        == "PIPELINE_POSTGRES__DSN_FILE names the file /nowhere/dsn, which cannot be read: No such file or directory"
    )


def test_a_secret_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://u@db/jobs")
    lines = refusal(
        {"PIPELINE_POSTGRES__DSN": "host=db", "PIPELINE_POSTGRES__DSN_FILE": str(tmp_path / "dsn")}
    )
    assert lines == [
        "postgres.dsn is given twice: by env PIPELINE_POSTGRES__DSN and by env PIPELINE_POSTGRES__DSN_FILE"
    ]


def test_only_secrets_may_be_read_from_files() -> None:
    (line,) = refusal({"PIPELINE_NAMESPACE_FILE": "/etc/hostname"})
    assert line == "PIPELINE_NAMESPACE_FILE: there is no such setting; did you mean PIPELINE_NAMESPACE?"


SECRET = "hunter2"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://user:{SECRET}@db:5432/jobs?sslmode=require",
        f"postgres://user:{SECRET}/@:x@db/jobs",
        f"postgresql://user:{SECRET}?x@db/jobs",
        f"postgresql://db/jobs?user=u&password={SECRET}",
        f"postgresql://db/jobs?pass%77ord={SECRET}",
        f"postgresql://db:5432/jobs?password=a@{SECRET}",
        f"postgresql://user@db/jobs?sslpassword={SECRET}&application_name=x",
        f"host=db password={SECRET} user=me",
        f"host=db password = '{SECRET} \\' {SECRET}' user=me",
        f"host=db password=\\'{SECRET}\\ {SECRET} user=me",
        f"host=db password='{SECRET} is never closed",
        f"PASSWORD={SECRET}",
        f"host=db user=me {SECRET}",
    ],
)
def test_no_password_is_left_in_a_masked_dsn(dsn: str) -> None:
    assert SECRET not in mask_dsn(dsn)
    assert "***" in mask_dsn(dsn)


def test_a_masked_dsn_still_tells_where_the_database_is() -> None:
    assert (
        mask_dsn("postgresql://me:pw@db:5432/jobs?sslmode=require")
        == "postgresql://me:***@db:5432/jobs?sslmode=require"
    )
    assert mask_dsn("host=db  password=pw user = me") == "host=db password=*** user=me"
    assert mask_dsn("postgresql://me@db/jobs") == "postgresql://me@db/jobs"


@given(password=st.text(st.characters(codec="utf-8"), min_size=6).filter(lambda text: "*" not in text))
def test_no_password_whatever_its_characters_is_left_in_a_masked_connection_string(password: str) -> None:
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    assert mask_dsn(f"host=db password='{quoted}' user=me") == "host=db password=*** user=me"


OPTION_SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
)


def test_secrets_are_shown_nowhere() -> None:
    options = ",".join(f"{name}={SECRET}" for name in OPTION_SECRETS)
    environ = {
        "PIPELINE_KAFKA__OPTIONS": options,
        "PIPELINE_KAFKA__PRODUCER_OPTIONS": options,
        "PIPELINE_KAFKA__CONSUMER_OPTIONS": options,
        "PIPELINE_POSTGRES__DSN": f"host=db password={SECRET}",
    }
    settings = load_settings(environ=environ)
    shown = show(settings)
    assert all(value == "***" for value in shown["kafka"]["options"].values())
    for text in (repr(settings), str(settings), repr(shown), repr(list(describe(settings)))):
        assert SECRET not in text


def test_a_wrong_secret_is_refused_without_being_shown() -> None:
    (line,) = refusal({"PIPELINE_POSTGRES__DSN": SECRET})
    assert line.startswith("postgres.dsn is '***' (env PIPELINE_POSTGRES__DSN); allowed: postgresql://")
    with pytest.raises(ValueError) as caught:
        Settings.model_validate({"postgres": {"dsn": SECRET}})
    assert SECRET not in str(caught.value)


# --- what is refused


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "worker.lease",
            "soon",
            "worker.lease is 'soon' (flag --set worker.lease); allowed: a number from 0.1 to 3600",
        ),
        ("worker.concurrency", 0, "allowed: a whole number from 1 to 1024"),
        ("worker.concurrency", 1.5, "allowed: a whole number from 1 to 1024"),
        ("worker.concurrency", True, "worker.concurrency is True"),
        ("worker.lease", "nan", "allowed: a number from 0.1 to 3600"),
        ("worker.lease", float("inf"), "allowed: a number from 0.1 to 3600"),
        ("worker.http_port", 65_536, "allowed: 0 to 65535 (0: any free one), or 'off'"),
        ("log.level", "loud", "allowed: one of DEBUG, INFO, WARNING, ERROR"),
        ("log.moves", "perhaps", "allowed: true or false"),
        ("publisher.compression", "rar", "allowed: one of none, gzip, snappy, lz4, zstd"),
        ("namespace", "Jobs!", "allowed: a-z, 0-9, '_' and '-'"),
        ("namespace", 5, "namespace is 5"),
        ("queues", "a,a", "at least one name, none twice"),
        ("queues", "", "at least one name"),
        ("queues", "a.b", "names of a-z"),
        ("queues", '["a"', "queues is '[\"a\"'"),
        ("schemas_dir", "", "allowed: a path"),
        ("kafka.bootstrap_servers", "http:/x", "allowed: host:port"),
        ("kafka.bootstrap_servers", "a:1,,b:2", "allowed: host:port"),
        ("kafka.group", "g" * 256, "at most 255"),
        ("postgres.schema_name", "a b", "allowed: a-z, 0-9"),
        ("postgres.schema_name", "pg_x", "not starting with a digit or 'pg_'"),
        ("topics.main_retention", 0, "seconds, 1 or more, or -1 for ever"),
        ("topics.main_retention", -2, "seconds, 1 or more, or -1 for ever"),
        ("dlq.topics", "orders-dlt,orders-dlt", "names of topics, none twice"),
        ("dlq.topics", "or ders", "names of topics, none twice"),
        ("dlq.topics", "jobs.default.dlq", "topics of others, none named as a queue"),
        ("dlq.topics", "default", "topics of others, none named as a queue"),
        ("retry.tiers", "60,10", "each above 0 and longer than the one before"),
        ("retry.tiers", "10,10", "each above 0 and longer than the one before"),
        ("retry.tiers", "10,10.0001", "each above 0 and longer than the one before"),
        ("retry.tiers", "0", "each above 0"),
        ("retry.tiers", "", "at least one"),
        ("retry.tiers", [10, "x"], "retry.tiers is [10, 'x']"),
        ("worker", "fast", "--set worker: 'worker' is a section; allowed: its keys, as worker.concurrency"),
        ("worker.leese", 1, "--set worker.leese: there is no such setting; did you mean worker.lease?"),
        ("", 1, "--set : there is no such setting"),
        ("kafka.options.", 1, "--set kafka.options.: there is no such setting"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_what_is_allowed(
    key: str, value: object, message: str
) -> None:
    (line,) = refusal(overrides={key: value})
    assert message in line


def test_everything_that_is_wrong_is_told_at_once() -> None:
    lines = refusal(
        {"PIPELINE_LOG__LEVEL": "loud", "PIPELINE_WORKER_LEASE": "1"},
        {"topics.replication": 0},
        '[log]\ncolour = true\n[publisher]\ntimeout = "long"\n',
    )
    assert [line.split(" ")[0] for line in lines] == [
        "PIPELINE_WORKER_LEASE:",
        "log.colour",
        "topics.replication",
        "publisher.timeout",
        "log.level",
    ]
    assert "did you mean PIPELINE_WORKER__LEASE?" in lines[0]
    assert "pipeline.toml" in lines[1]


CLASHES: dict[str, tuple[dict[str, object], str]] = {
    "heartbeats": (
        {"worker.heartbeat_interval": 6},
        (
            "worker.heartbeat_interval is 6.0 (flag --set worker.heartbeat_interval); "
            "allowed: at most a third of worker.lease, which is 10.0"
        ),
    ),
    "polls": (
        {"worker.max_poll_interval": 6},
        "worker.session_timeout is 8.0 (default); allowed: at most worker.max_poll_interval, which is 6.0",
    ),
    "revokes": (
        {"worker.revoke_timeout": 300},
        (
            "worker.revoke_timeout is 300.0 (flag --set worker.revoke_timeout); "
            "allowed: less than worker.max_poll_interval, which is 300.0"
        ),
    ),
    "linger": (
        {"publisher.timeout": 0.1, "publisher.linger_ms": 100},
        (
            "publisher.linger_ms is 100.0 (flag --set publisher.linger_ms); "
            "allowed: less than publisher.timeout, which is 0.1 seconds"
        ),
    ),
    "replicas": (
        {"topics.min_insync_replicas": 2},
        (
            "topics.min_insync_replicas is 2 (flag --set topics.min_insync_replicas); "
            "allowed: at most topics.replication, which is 1"
        ),
    ),
    "retention": (
        {"topics.retry_retention": 89_999},
        (
            "retry.tiers is [10.0, 60.0, 600.0, 3600.0] (default); allowed: at most topics.retry_retention minus "
            "retry.outage_allowance, which is 89999 - 86400 = 3599"
        ),
    ),
}


@pytest.mark.parametrize("case", CLASHES)
def test_two_settings_that_clash_are_both_named(case: str) -> None:
    overrides, line = CLASHES[case]
    assert refusal(overrides=overrides) == [line]


def test_a_tier_as_long_as_retention_and_outage_allow_is_accepted() -> None:
    assert load_settings({"topics.retry_retention": 90_000}, environ={}).topics.retry_retention == 90_000
    assert load_settings({"topics.retry_retention": -1, "retry.tiers": "99999999"}, environ={}).retry.tiers


def test_a_lease_of_three_heartbeats_is_accepted_whatever_floats_do() -> None:
    assert WorkerSettings(lease=0.3, heartbeat_interval=0.1).lease == 0.3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = ", "is not TOML"),
        (b"\xff", "is not TOML"),
    ],
)
def test_a_file_that_is_no_toml_is_refused(content: bytes, message: str) -> None:
    Path("pipeline.toml").write_bytes(content)
    (line,) = refusal()
    assert line.startswith("the configuration file pipeline.toml")
    assert message in line


def test_a_file_that_is_named_and_missing_is_refused() -> None:
    (line,) = refusal({"PIPELINE_CONFIG": "missing.toml"})
    assert line == "the configuration file missing.toml cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PIPELINE_SERVICE_HOST", "10.0.0.1"),
        ("PIPELINE_WEB_SERVICE_PORT_HTTP", "80"),
        ("PIPELINE_PORT", "tcp://10.0.0.1:80"),
        ("PIPELINE_WEB_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("PIPELINE_TEST_KAFKA", "x"),
        ("PIPELINE_APP", "handlers:app"),
    ],
)
def test_variables_that_are_no_settings_are_left_alone(name: str, value: str) -> None:
    assert load_settings(environ={name: value}) == Settings()


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    overrides=st.dictionaries(
        st.sampled_from([*setting_keys(), "kafka.options.x", "x.y"]), ANYTHING, max_size=3
    )
)
def test_whatever_is_given_the_answer_is_settings_or_one_error_of_ours(overrides: dict[str, object]) -> None:
    try:
        shown = repr(show(load_settings(overrides, environ={})))
    except ConfigError as error:
        shown = str(error)
    assert shown.encode()


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    assert len(refusal({"PIPELINE_QUEUES": "[" * 100_000, "PIPELINE_KAFKA__OPTIONS": '{"a":' * 100_000})) == 2


# --- what others take from it


def test_retentions_reach_the_topics_in_milliseconds() -> None:
    settings = load_settings({"topics.main_retention": 1.5, "topics.dlq_retention": -1}, environ={})
    assert settings.topics.to_core() == TopicSettings(main_retention_ms=1500, dlq_retention_ms=-1)


def test_the_defaults_of_the_core_and_of_the_settings_are_the_same() -> None:
    assert Settings().topics.to_core() == TopicSettings()


# --- pipeline config show


def run_show(*arguments: str, **overrides: str) -> str:
    session = Session(None, tuple(f"{key}={value}" for key, value in overrides.items()))
    result = CliRunner().invoke(command, ["show", *arguments], obj=session)
    assert result.exit_code == 0, result.output
    return result.output


def test_show_prints_every_setting_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_KAFKA__OPTIONS__SASL_PASSWORD", SECRET)
    monkeypatch.setenv("PIPELINE_KAFKA__OPTIONS__SASL_USERNAME", "me")
    output = run_show(namespace="other")
    assert SECRET not in output
    assert 'namespace = "other"  # flag --set namespace' in output
    assert '"sasl.password" = "***"  # env PIPELINE_KAFKA__OPTIONS__SASL_PASSWORD' in output
    assert "lease = 10.0  # default" in output
    missing = [
        key
        for key, setting in setting_keys().items()
        if not setting.options and key.split(".")[-1] not in output
    ]
    assert missing == []


def test_what_show_prints_can_be_used_as_the_file() -> None:
    given: dict[str, object] = {
        "worker.http_port": "off",
        "retry.tiers": "1,2",
        "kafka.options.client.id": "x",
    }
    output = run_show(**{key: str(value) for key, value in given.items()})
    Path("pipeline.toml").write_text(output)
    assert show(load_settings(environ={})) == show(load_settings(given, environ={}))
    assert tomllib.loads(output)["kafka"]["options"] == {"client.id": "x"}


def test_show_speaks_json_too() -> None:
    assert re.search(
        r'"worker.lease": \{\s*"value": 10.0,\s*"source": "default"\s*\}', run_show("--format", "json")
    )


# --- docs/configuration.md


def test_the_page_about_configuration_is_what_the_settings_say() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    assert page == configuration_page(), (
        "write it anew: python -m pipeline.config.docs > docs/configuration.md"
    )


# --- schema registry


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"url": "registry:8081"}, "schema_registry.url is 'registry:8081'"),
        ({"url": "ftp://registry"}, "schema_registry.url is 'ftp://registry'"),
        ({"url": "http://"}, "schema_registry.url is 'http://'"),
        ({"url": "http://registry:port"}, "schema_registry.url is 'http://registry:port'"),
        ({"url": "http://registry?a=b"}, "schema_registry.url is 'http://registry?a=b'"),
        ({"url": "http://ann:hunter2@registry"}, r"schema_registry.url is 'http://***@registry'"),
        ({"password": "hunter2"}, "schema_registry.username is ''"),
        ({"username": "ann", "token": "hunter2"}, "schema_registry.username is 'ann'"),
        ({"timeout": "0"}, "schema_registry.timeout is '0'"),
    ],
)
def test_a_wrong_setting_of_the_schema_registry_is_refused(values: dict[str, str], complaint: str) -> None:
    lines = refusal(overrides={f"schema_registry.{name}": value for name, value in values.items()})
    assert len(lines) == 1
    assert lines[0].startswith(complaint)
    assert "hunter2" not in lines[0]


def test_credentials_of_the_schema_registry_are_masked_whatever_they_look_like() -> None:
    settings = load_settings(
        {
            "schema_registry.url": "https://registry.example.test:8081/apis/ccompat/v7",
            "schema_registry.username": "ann",
            "schema_registry.password": "key=hunter2",
        },
        environ={},
    )
    shown = show(settings)["schema_registry"]
    assert (shown["username"], shown["password"], shown["token"]) == ("ann", "***", "")
    assert "hunter2" not in repr(settings)
