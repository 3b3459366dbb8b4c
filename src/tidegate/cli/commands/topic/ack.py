"""`tidegate topic ack`, `nack` and `extend`: the leases of messages of a consumer group."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli.commands.topic.arguments import (
    GroupOption,
    LeasesOption,
    MemberOption,
    TopicArgument,
    option_errors,
    parse_milliseconds,
    parse_upto,
    places_text,
)
from tidegate.cli.hints import UsageRefused
from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import plural, time_text

NEEDED_LEASES = "Name what it is about: --lease ID, as consume --group printed it."


def register(app: typer.Typer) -> None:
    """Add the commands to `tidegate topic`."""
    command(app, "ack", tenant=True)(ack)
    command(app, "nack", tenant=True)(nack)
    command(app, "extend", tenant=True)(extend)


def ack(
    call: Invocation,
    topic: TopicArgument,
    group: GroupOption,
    member: MemberOption = None,
    upto: Annotated[
        list[str] | None,
        typer.Option(
            "--upto",
            metavar="[PARTITION:]OFFSET",
            help="All that this member got, up to and with this offset; repeatable for partitions.",
        ),
    ] = None,
    leases: LeasesOption = None,
) -> None:
    """Acknowledge messages: the group is done with them and does not redeliver them."""
    if bool(upto) == bool(leases):
        raise UsageRefused("Name what is done: --upto [PARTITION:]OFFSET or --lease ID, one of the two.")
    with call.client() as client:
        what: dict[str, Any] = (
            {"leases": leases} if leases else {"upto": parse_upto(client, topic, upto or ())}
        )
        answer = client.topic(topic).ack(group, member=member, **what)

    def sentence() -> str:
        done = f"Acknowledged {plural(answer['acked'], 'message')}."
        where = places_text(answer["position"])
        return f"{done} {group} continues from {where}." if where else done

    call.answer(answer, sentence)


def nack(  # noqa: PLR0913 - one parameter for each option
    call: Invocation,
    *,
    topic: TopicArgument,
    group: GroupOption,
    leases: LeasesOption = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not again before this long, such as '5 s'.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What went wrong; a dead letter has it.")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Straight to TOPIC.dead, not again.")] = False,
    member: MemberOption = None,
) -> None:
    """Hand messages back: they are delivered again, and after too many times go to TOPIC.dead."""
    if not leases:
        raise UsageRefused(NEEDED_LEASES)
    delay_ms = parse_milliseconds(delay, "--delay") or 0
    with call.client() as client, option_errors("delayMs", "--delay"):
        answer = client.topic(topic).nack(
            group, leases, delay_ms=delay_ms, reason=reason, dead=dead, member=member
        )

    def sentence() -> str:
        back = f"Given back: {plural(answer['nacked'], 'message')}."
        return f"{back} Of them {answer['dead']} went to {topic}.dead." if answer["dead"] else back

    call.answer(answer, sentence)


def extend(
    call: Invocation,
    topic: TopicArgument,
    group: GroupOption,
    leases: LeasesOption = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="From now on this long, such as '30 s'.")
    ] = None,
    member: MemberOption = None,
) -> None:
    """Hold messages longer, from now on; else their leases expire and they are redelivered."""
    if not leases:
        raise UsageRefused(NEEDED_LEASES)
    lease_ms = parse_milliseconds(lasting, "--for")
    with call.client() as client, option_errors("leaseMs", "--for"):
        answer = client.topic(topic).extend(group, leases, lease_ms=lease_ms, member=member)
    call.answer(
        answer,
        lambda: (
            f"{plural(answer['extended'], 'message')} held until {time_text(answer['expiresAt']) or 'then'}."
        ),
    )
