"""The servers that scenarios stop and cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.site import Site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        yield site
