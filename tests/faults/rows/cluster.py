"""One of three brokers goes away, or so many that a write has too few copies."""

from __future__ import annotations

from pipeline import PublishFailed
from pipeline.embedded import EmbeddedKafkaCluster
from tests.faults.case import Case, scenario
from tests.harness.cluster import coordinator, in_sync, leaders
from tests.harness.jobs import Task
from tests.harness.world import World
from tests.servers import TestServers

__all__: list[str] = []


def _clustered(case: Case, **settings: object) -> tuple[EmbeddedKafkaCluster, World]:
    """A cluster that ends with the scenario. Three copies of each record, two of them in sync, if not told otherwise."""
    cluster = case.keep(EmbeddedKafkaCluster(case.folder / "cluster", temporary=True))
    copies = {"topics.replication": 3, "topics.min_insync_replicas": 2}
    servers = TestServers(cluster.bootstrap_servers, case.site.postgres.dsn)
    return cluster, case.world(on=servers, settings={**copies, **settings})


@scenario(14)
def the_leader_of_partitions_is_killed(case: Case) -> None:
    """The others lead on within seconds, with all that was acknowledged, while it stays dead."""
    cluster, world = _clustered(case)
    topic = world.names.main("default")
    with case.loaded(world) as loaded:
        victim = leaders(world, topic)[0]
        with loaded.load.fault():
            cluster.brokers[victim].kill()
            world.wait("others lead", lambda: victim not in leaders(world, topic).values())
        loaded.load.pass_time(case.scale.outage)
        cluster.brokers[victim].start()
        world.wait("all copies are in sync again", lambda: in_sync(world, topic) == 3, timeout=90)
    case.judge(loaded)


@scenario(15, "one of three, all asked for")
def too_few_brokers_are_in_sync(case: Case) -> None:
    """A write that has too few copies is refused."""
    cluster, world = _clustered(case, **{"topics.min_insync_replicas": 3, "publisher.timeout": 3})
    _refused_meanwhile(case, cluster, world, [1])


@scenario(15, "two of three")
def most_brokers_are_lost(case: Case) -> None:
    """The last broker cannot know whether the others are gone or go on without it."""
    cluster, world = _clustered(case, **{"publisher.timeout": 3})
    _refused_meanwhile(case, cluster, world, [1, 2])


def _refused_meanwhile(case: Case, cluster: EmbeddedKafkaCluster, world: World, victims: list[int]) -> None:
    """Every publish ends with an error, workers live on, and all goes on when the brokers are back."""
    with case.loaded(world) as loaded:
        with loaded.load.fault():
            for victim in victims:
                cluster.brokers[victim].kill()
            world.wait("a publish is refused", lambda: loaded.load.refused, timeout=60)
            acknowledged = [number for number in range(3) if _is_acknowledged(world, number)]
            loaded.load.pass_time(case.scale.outage)
            cluster.start()
            world.wait("all copies are in sync", lambda: in_sync(world, world.topics[0]) == 3, timeout=90)
        assert acknowledged == []
    case.judge(loaded)


def _is_acknowledged(world: World, number: int) -> bool:
    try:
        world.publisher.publish(world.jobs.effect, Task(name=f"too-few-{number}"), tenant="tenant-1")
    except PublishFailed:
        return False
    return True


@scenario(16)
def the_coordinator_of_the_group_is_killed(case: Case) -> None:
    """Commits go on at the broker that takes its place; no member is lost by it for longer than a rebalance."""
    cluster, world = _clustered(case)
    with case.loaded(world) as loaded:
        victim = coordinator(world)
        with loaded.load.fault():
            cluster.brokers[victim].kill()
            world.wait("another coordinates", lambda: coordinator(world) != victim)
        before = sum(loaded.sampler.samples[-1].committed.values())
        world.wait(
            "offsets are committed at the new one",
            lambda: sum(loaded.sampler.samples[-1].committed.values()) > before + 20,
        )
        cluster.brokers[victim].start()
    case.judge(loaded)
