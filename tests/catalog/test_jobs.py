"""Jobs: states, history, claims, and the takeover of a dead owner's job; on both databases."""

from __future__ import annotations

import threading

import pytest

from tests.catalog.conftest import ADMIN, OpenCatalog
from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.jobs import HISTORY_EVENTS_MAX, ClaimedJob, Job
from tidegate.catalog.paging import PageRequest
from tidegate.errors import JobNotFound, JobStateWrong, LeaseLost, RequestInvalid
from tidegate.testing.clock import START_US, ManualClock

TTL = 10.0


def create(catalog: Catalog, kind: str = "backup", tenant: str = "default") -> Job:
    return catalog.jobs.create(ADMIN, tenant, kind, "home", {"file": "b.tar"})


def claim(catalog: Catalog, which: str | list[str], holder: str = "one") -> ClaimedJob:
    claimed = catalog.jobs.claim(which, holder, TTL)
    assert claimed is not None
    return claimed


def test_a_job_goes_from_queued_to_done(catalog: Catalog, clock: ManualClock) -> None:
    job = create(catalog)
    assert (job.state, job.progress, job.attempts, job.owner) == ("queued", 0.0, 0, None)
    assert (job.created_by, job.created_us, job.details) == ("admin", START_US, {"file": "b.tar"})
    clock.advance(1)
    claimed = claim(catalog, job.id)
    assert (claimed.job.state, claimed.job.attempts, claimed.job.owner) == ("running", 1, "one")
    clock.advance(1)
    claimed = catalog.jobs.progress(claimed, 0.5, "half of it")
    assert catalog.jobs.get("default", job.id).progress == 0.5
    clock.advance(1)
    done = catalog.jobs.finish(claimed, {"bytes": 7})
    assert (done.state, done.progress, done.result, done.error) == ("done", 1.0, {"bytes": 7}, None)
    assert (done.started_us, done.finished_us) == (START_US + 1_000_000, START_US + 3_000_000)
    history = catalog.jobs.get("default", job.id).history
    assert [((event.at_us - START_US) // 1_000_000, event.state, event.note) for event in history] == [
        (0, "queued", ""),
        (1, "running", ""),
        (2, "running", "half of it"),
        (3, "done", ""),
    ]


def test_a_failed_job_says_why(catalog: Catalog) -> None:
    claimed = claim(catalog, create(catalog).id)
    failed = catalog.jobs.fail(claimed, {"code": "STORAGE_FULL", "message": "No room."})
    assert (failed.state, failed.error) == ("failed", {"code": "STORAGE_FULL", "message": "No room."})
    assert catalog.jobs.get("default", failed.id).history[-1].note == "No room."
    assert catalog.jobs.claim(failed.id, "two", TTL) is None


def test_a_claim_takes_the_oldest_of_its_kinds(catalog: Catalog) -> None:
    first, other, second = create(catalog), create(catalog, "prune"), create(catalog)
    assert claim(catalog, ["backup"]).job.id == first.id
    assert claim(catalog, ["backup"]).job.id == second.id
    assert catalog.jobs.claim(["backup"], "one", TTL) is None
    assert claim(catalog, ["backup", "prune"]).job.id == other.id
    assert catalog.jobs.claim([], "one", TTL) is None


def test_the_job_of_a_living_owner_is_not_taken(catalog: Catalog, clock: ManualClock) -> None:
    claimed = claim(catalog, create(catalog).id)
    for _ in range(5):
        clock.advance(TTL - 1)
        assert catalog.jobs.claim(claimed.job.id, "two", TTL) is None
        assert catalog.jobs.claim(["backup"], "two", TTL) is None
        claimed = catalog.jobs.progress(claimed, 0.1)


@pytest.mark.parametrize("by_id", [True, False])
def test_the_job_of_a_dead_owner_is_taken_over_and_the_owner_fenced_off(
    catalog: Catalog, clock: ManualClock, by_id: bool
) -> None:
    dead = claim(catalog, create(catalog).id)
    clock.advance(TTL)
    taken = claim(catalog, dead.job.id if by_id else ["backup"], "two")
    assert (taken.job.id, taken.job.attempts, taken.job.owner) == (dead.job.id, 2, "two")
    assert taken.lease.fence > dead.lease.fence
    for report in (
        lambda: catalog.jobs.progress(dead, 0.9, "still here"),
        lambda: catalog.jobs.finish(dead, {"from": "the dead"}),
        lambda: catalog.jobs.fail(dead, {"message": "the dead"}),
    ):
        with pytest.raises(LeaseLost):
            report()
    done = catalog.jobs.finish(taken, {"from": "the living"})
    assert done.result == {"from": "the living"}
    notes = [event.note for event in catalog.jobs.get("default", done.id).history]
    assert notes == ["", "", "taken over from one", ""]


def test_a_clock_set_back_leaves_no_job_with_a_dead_owner(catalog: Catalog, clock: ManualClock) -> None:
    job = claim(catalog, create(catalog).id).job
    clock.set_us(START_US - 3_600_000_000)
    assert catalog.jobs.claim(["backup"], "two", TTL) is None
    clock.advance(TTL)
    assert claim(catalog, ["backup"], "two").job.id == job.id


def test_a_cancelled_job_is_over_and_its_owner_learns_of_it(catalog: Catalog) -> None:
    queued, running = create(catalog), claim(catalog, create(catalog).id)
    carl = Actor("default", "carl")
    assert catalog.jobs.cancel(carl, "default", queued.id).state == "cancelled"
    assert catalog.jobs.cancel(carl, "default", running.job.id).state == "cancelled"
    with pytest.raises(LeaseLost):
        catalog.jobs.progress(running, 0.5)
    with pytest.raises(LeaseLost):
        catalog.jobs.finish(running)
    assert catalog.jobs.claim(["backup"], "one", TTL) is None
    with pytest.raises(JobStateWrong, match="cancelled"):
        catalog.jobs.cancel(carl, "default", queued.id)
    assert catalog.jobs.get("default", queued.id).history[-1].note == "by carl"
    assert catalog.audit.list("default", PageRequest(limit=1), user="carl").rows[0].action == "job.cancel"


def test_jobs_of_another_tenant_are_not_found(catalog: Catalog) -> None:
    job = create(catalog, tenant="acme")
    for wrong in (job.id, "0" * 24, "", "a\0", "x" * 999):
        with pytest.raises(JobNotFound):
            catalog.jobs.get("default", wrong)
        with pytest.raises(JobNotFound):
            catalog.jobs.cancel(ADMIN, "default", wrong)
    assert catalog.jobs.list("default", PageRequest()).rows == []
    assert catalog.jobs.get("acme", job.id).id == job.id


def test_lists_are_newest_first_also_when_the_clock_goes_back(catalog: Catalog, clock: ManualClock) -> None:
    ids = []
    for _ in range(5):
        ids.append(create(catalog).id)
        clock.set_us(clock.now_us() - 60_000_000)
    first = catalog.jobs.list("default", PageRequest(limit=3))
    second = catalog.jobs.list("default", PageRequest(after=first.next, limit=3))
    assert [job.id for job in first.rows + second.rows] == ids[::-1]
    claim(catalog, ids[2])
    assert [job.id for job in catalog.jobs.list("default", PageRequest(), state="running").rows] == [ids[2]]
    assert catalog.jobs.list("default", PageRequest(), kind="prune").rows == []


def test_the_history_of_a_job_has_a_limit(catalog: Catalog) -> None:
    claimed = claim(catalog, create(catalog).id)
    for number in range(HISTORY_EVENTS_MAX + 5):
        claimed = catalog.jobs.progress(claimed, 0.5, f"step {number}")
    history = catalog.jobs.get("default", claimed.job.id).history
    assert (len(history), history[-1].note) == (HISTORY_EVENTS_MAX, f"step {HISTORY_EVENTS_MAX + 4}")


def test_details_have_a_limit(catalog: Catalog) -> None:
    with pytest.raises(RequestInvalid, match="too long"):
        catalog.jobs.create(ADMIN, "default", "backup", "home", {"x": "y" * (1 << 20)})


def test_finished_jobs_are_pruned_with_their_history(catalog: Catalog, clock: ManualClock) -> None:
    done = catalog.jobs.finish(claim(catalog, create(catalog).id))
    clock.advance(100)
    running = claim(catalog, create(catalog).id)
    assert catalog.jobs.prune(START_US) == 0
    assert catalog.jobs.prune(clock.now_us()) == 1
    with pytest.raises(JobNotFound):
        catalog.jobs.get("default", done.id)
    assert len(catalog.jobs.get("default", running.job.id).history) == 2


def test_racing_servers_never_claim_one_job_twice(
    place: DatabaseAddress, clock: ManualClock, open_catalog: OpenCatalog
) -> None:
    catalogs = [open_catalog(place, clock) for _ in range(3)]
    made = {create(catalogs[0]).id for _ in range(24)}
    claimed: list[str] = []

    def run(catalog: Catalog, holder: str) -> None:
        while (one := catalog.jobs.claim(["backup"], holder, TTL)) is not None:
            claimed.append(one.job.id)

    threads = [threading.Thread(target=run, args=(one, f"s{n}")) for n, one in enumerate(catalogs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed))
    # Whoever lost every race of its last look may stop early; nothing is lost, the next look finds it.
    run(catalogs[0], "last")
    assert sorted(claimed) == sorted(made)
