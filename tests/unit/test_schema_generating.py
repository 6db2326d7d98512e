"""Schemas written from models, and the commands that write, release, compare and check them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from click.testing import CliRunner
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, RootModel

from pipeline.adapters.avro import AvroCodec, SchemaCatalog
from pipeline.adapters.avro.generating import schema_text
from pipeline.adapters.avro.parsing import parse
from pipeline.cli.common import Session
from pipeline.cli.schemas import command
from pipeline.demo.jobs import RenderInvoice, SendEmail
from pipeline.errors import PipelineError, SchemaError

JOB = "order.ship"
Money = Annotated[Decimal, Field(max_digits=9, decimal_places=2)]


class Kind(StrEnum):
    UNKNOWN = "UNKNOWN"
    PARCEL = "PARCEL"


class Place(BaseModel):
    """Where something is.

    More words that are for programmers.
    """

    street: str
    floor: int = Field(default=0, ge=-5, le=200)


class Ship(BaseModel):
    """An order that leaves."""

    order: UUID
    at: datetime
    seen: AwareDatetime | None = None
    on: date
    price: Money
    weight: float = 1.5
    kind: Kind = Kind.PARCEL
    place: Place
    stops: list[Place] = []
    tags: dict[str, str] = Field(default_factory=dict)
    raw: bytes = b""
    note: Annotated[str | None, Field(description="What the driver should know.")] = None
    extra_price: Money | None = None
    count: int
    small: Annotated[int, Field(ge=0, le=100)] = 1
    fragile: bool = False


class ShipNext(Ship):
    insured: bool = False
    carrier: str = "own"


class ShipWrong(Ship):
    region: str


class ShipSwapped(Ship):
    weight: str = ""  # type: ignore[assignment]  # the point


def fields(text: str) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(text)["fields"]}


# --- from a model


def test_every_allowed_type_becomes_its_avro_type() -> None:
    text = schema_text(Ship, namespace="shop")
    found = fields(text)
    document = json.loads(text)
    assert (document["name"], document["namespace"], document["doc"]) == (
        "Ship",
        "shop",
        "An order that leaves.",
    )
    assert {name: field["type"] for name, field in found.items() if isinstance(field["type"], str)} == {
        "weight": "double",
        "raw": "bytes",
        "count": "long",
        "small": "int",
        "fragile": "boolean",
    }
    assert found["order"]["type"] == {"type": "string", "logicalType": "uuid"}
    assert found["at"]["type"] == {"type": "long", "logicalType": "timestamp-micros"}
    assert found["seen"]["type"] == ["null", {"type": "long", "logicalType": "timestamp-micros"}]
    assert found["on"]["type"] == {"type": "int", "logicalType": "date"}
    assert found["price"]["type"] == {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    assert found["kind"]["type"] == {
        "type": "enum",
        "name": "Kind",
        "symbols": ["UNKNOWN", "PARCEL"],
        "default": "UNKNOWN",
    }
    assert found["place"]["type"]["fields"][1] == {"name": "floor", "type": "int", "default": 0}
    assert found["place"]["type"]["doc"] == "Where something is."
    assert found["stops"]["type"] == {"type": "array", "items": "Place"}
    assert found["tags"]["type"] == {"type": "map", "values": "string"}
    assert found["note"]["doc"] == "What the driver should know."
    defaults = {name: field["default"] for name, field in found.items() if "default" in field}
    assert defaults == {
        "seen": None,
        "weight": 1.5,
        "kind": "PARCEL",
        "stops": [],
        "tags": {},
        "note": None,
        "extra_price": None,
        "small": 1,
        "fragile": False,
    }


@pytest.mark.parametrize("model", [Ship, SendEmail, RenderInvoice])
def test_the_codec_takes_the_model_with_the_schema_written_from_it(
    tmp_path: Path, model: type[BaseModel]
) -> None:
    (tmp_path / JOB).mkdir()
    (tmp_path / JOB / "v1.avsc").write_text(schema_text(model, namespace="shop"))
    AvroCodec(SchemaCatalog(tmp_path)).register(JOB, model)


class Mood(Enum):
    GOOD = "GOOD"
    BAD = "BAD"


class Odd(Enum):
    A = "with space"


class Level(IntEnum):
    ONE = 1


class Node(BaseModel):
    children: list[Node] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Rooted(RootModel[list[int]]):
    pass


class Pair(NamedTuple):
    a: int


def other_place() -> type[BaseModel]:
    class Place(BaseModel):
        x: int

    return Place


@pytest.mark.parametrize(
    ("annotation", "complaint"),
    [
        (time, "time has no place in a payload; models may use"),
        (timedelta, "timedelta has no place"),
        (complex, "complex has no place"),
        (Any, "Any has no place"),
        (object, "object has no place"),
        (set[str], r"set\[str\] has no place"),
        (tuple[int, str], r"tuple\[int, str\] has no place"),
        (dict[int, str], r"dict\[int, str\] has no place"),
        (int | str, r"int \| str has no place"),
        (Literal["a"], r"Literal\['a'\] has no place"),
        (Pair, "Pair has no place"),
        (list, "list has no place"),
        (Decimal, r"Decimal needs Field\(max_digits=\.\.\., decimal_places=\.\.\.\)"),
        (Annotated[Decimal, Field(max_digits=2000, decimal_places=2)], "at most 1000 digits"),
        (Mood, "Mood has no member that stands for those of newer versions.*--enum-default Mood=SYMBOL"),
        (Odd, "Odd needs members whose values are names"),
        (Level, "Level needs members whose values are names"),
        (Node, "Node contains itself"),
        (Open, "Open needs named fields, and no others"),
        (Rooted, "Rooted needs named fields"),
        (list[set[int]], r"field 'value\[\]': set\[int\]"),
        (dict[str, list[time]], r"field 'value\{\}\[\]': time"),
    ],
)
def test_a_type_that_has_no_place_in_a_payload_is_refused_by_the_name_of_its_field(
    annotation: Any, complaint: str
) -> None:
    model = type("Model", (BaseModel,), {"__annotations__": {"value": annotation}, "__module__": __name__})
    with pytest.raises(SchemaError, match=complaint) as caught:
        schema_text(model, namespace="shop")
    assert "field 'value" in str(caught.value)


def test_two_classes_of_one_name_are_refused() -> None:
    model = type("Model", (BaseModel,), {"__annotations__": {"a": Place, "b": other_place()}})
    with pytest.raises(SchemaError, match=r"field 'b': Place has the name of another class"):
        schema_text(model, namespace="shop")


def test_an_enum_takes_the_default_that_is_named_for_it() -> None:
    model = type("Model", (BaseModel,), {"__annotations__": {"mood": Mood}})
    text = schema_text(model, namespace="shop", enum_defaults={"Mood": "BAD"})
    assert fields(text)["mood"]["type"]["default"] == "BAD"


def test_the_next_version_keeps_what_a_model_cannot_say() -> None:
    first = json.loads(schema_text(SendEmail, namespace="shop"))
    first["name"], first["doc"] = "Mail", "By hand."
    first["fields"][0] |= {"doc": "Whom to.", "aliases": ["recipient"]}
    first["fields"].append({"name": "retries", "type": "int", "default": 3})

    class Mail(SendEmail):
        retries: int

    previous = parse(json.dumps(first), "test")
    second = json.loads(schema_text(Mail, namespace="elsewhere", previous=previous))
    assert (second["name"], second["namespace"], second["doc"]) == ("Mail", "shop", "By hand.")
    assert second["fields"][0] == {
        "name": "to",
        "doc": "Whom to.",
        "aliases": ["recipient"],
        "type": "string",
    }
    # It was an int and had a default, without which what was written before it came could not be read.
    assert second["fields"][-1] == {"name": "retries", "type": "int", "default": 3}


# --- commands


class Ended(NamedTuple):
    code: int
    out: str
    error: str


Run = Callable[..., Ended]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        result = CliRunner().invoke(command, arguments, obj=Session(None, ()))
        known = isinstance(result.exception, PipelineError | SystemExit | None)
        assert known, result.exception
        return Ended(result.exit_code, result.output, str(result.exception or ""))

    return run


def of(model: type[BaseModel]) -> str:
    return f"{__name__}:{model.__name__}"


def test_a_schema_is_born_checked_released_and_followed_by_the_next(run: Run, tmp_path: Path) -> None:
    first = run("new", JOB, "--from", of(Ship))
    assert first.out == "schemas/order.ship/v1.avsc written; `pipeline schemas release` makes it final\n"
    assert json.loads((tmp_path / "schemas" / JOB / "v1.avsc").read_text())["namespace"] == "order"
    checked = run("check")
    assert checked.code == 0
    assert "schemas/order.ship/v1.avsc is not released yet" in checked.out
    assert "1 versions of 1 job types in schemas: nothing is wrong" in checked.out
    assert run("release").out == "released order.ship v1\n"
    assert run("release").out == "there is nothing new to release\n"
    assert run("new", JOB, "--from", of(ShipNext)).code == 0
    assert run("release", JOB).out == "released order.ship v2\n"
    listed = run("list").out.splitlines()
    assert listed[0].split() == ["job", "type", "version", "fingerprint", "released", "record", "fields"]
    assert [[*line.split()[1:4:2], line.split()[4]] for line in listed[1:]] == [
        ["v1", "yes", "order.Ship"],
        ["v2", "yes", "order.Ship"],
    ]
    assert run("check").out == "2 versions of 1 job types in schemas: nothing is wrong\n"


def test_diff_shows_what_came_went_and_changed(run: Run, tmp_path: Path) -> None:
    run("new", JOB, "--from", of(Ship))
    run("new", JOB, "--from", of(ShipNext))
    shown = run("diff", JOB)
    assert shown.code == 0
    assert shown.out.splitlines() == ["+ insured: boolean, default false", '+ carrier: string, default "own"']
    back = run("diff", JOB, "v2", "1")
    assert back.out.splitlines()[0] == "- insured: boolean, default false"
    path = tmp_path / "schemas" / JOB / "v2.avsc"
    path.write_text(
        path.read_text().replace('"double"', '"string"').replace('"default": 1.5', '"default": ""')
    )
    changed = run("diff", JOB, "v1", "v2")
    assert '~ weight: double, default 1.5 -> string, default ""' in changed.out.splitlines()
    assert changed.code == 1
    assert "[incompatible]" in changed.out
    assert run("diff", JOB, "v9").error == "version is 'v9'; allowed for order.ship: v1, v2"


def test_nothing_is_written_that_would_not_pass(run: Run, tmp_path: Path) -> None:
    run("new", JOB, "--from", of(Ship))
    for model in (ShipWrong, ShipSwapped):
        refused = run("new", JOB, "--from", of(model))
        assert refused.code == 1
        assert refused.error == "schemas/order.ship/v2.avsc was not written"
        assert "[incompatible]" in refused.out
        assert "instead: add fields only with a default" in refused.out
    assert not (tmp_path / "schemas" / JOB / "v2.avsc").exists()
    same = run("new", JOB, "--from", of(Ship))
    assert "says the same as" in same.error


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("no.such:Thing", "there is no module 'no'"),
        (f"{__name__}:Nothing", "'Nothing' in .* is no pydantic model"),
        (f"{__name__}:Mood", "'Mood' in .* is no pydantic model"),
        (__name__, "'' in .* is no pydantic model"),
    ],
)
def test_a_model_that_cannot_be_found_is_named(run: Run, source: str, complaint: str) -> None:
    import re

    assert re.search(complaint, run("new", JOB, "--from", source).error)


def test_release_refuses_what_does_not_pass_and_types_that_are_not_there(run: Run, tmp_path: Path) -> None:
    run("new", JOB, "--from", of(Ship))
    assert "there are: order.ship" in run("release", "no.such").error
    path = tmp_path / "schemas" / JOB / "v1.avsc"
    path.write_text(path.read_text().replace('"default": "UNKNOWN"', '"doc": ""'))
    refused = run("release")
    assert (refused.code, refused.error) == (1, "nothing was released")
    assert "[enum-without-default]" in refused.out
    assert not (tmp_path / "schemas" / "lock.json").exists()


def test_check_compares_the_models_of_an_application(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("new", JOB, "--from", of(Ship))
    (tmp_path / "shop_app.py").write_text(
        "from pipeline import Pipeline\n"
        f"from {__name__} import Ship, ShipNext\n"
        "app, newer = Pipeline(), Pipeline()\n"
        f"app.job_type({JOB!r}, Ship)\n"
        f"newer.job_type({JOB!r}, ShipNext)\n"
        "newer.job_type('no.schema', ShipNext)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert run("check", "--app", "shop_app").code == 0
    refused = run("check", "--app", "shop_app:newer")
    assert refused.code == 1
    assert refused.error == "2 findings in schemas"
    assert refused.out.count("[model-differs]") == 2
    assert "field 'carrier' is missing, but str in ShipNext" in refused.out


def test_a_folder_that_is_not_there_is_named(run: Run) -> None:
    assert "there is no folder nowhere" in run("check", "--dir", "nowhere").error


def test_push_without_a_registry_says_which_setting_is_missing(run: Run) -> None:
    assert run("push").error.startswith("schema_registry.url is empty")
