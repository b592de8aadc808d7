"""Accounts: invitations, logins that end when they should, limits on guessing, and a log of it all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select

from annotation.service.access.accounts import Accounts
from annotation.service.access.passwords import Passwords
from annotation.storage import accounts as stored
from annotation.storage import audit
from annotation.storage.attempts import Limits
from annotation.storage.logins import TOKEN_PREFIX, Principal
from annotation.storage.migrating import open_database
from annotation.storage.schema import Invitation, Login, LoginAttempt, User
from warehouse.core.errors import AccessDenied, ConfigError, LoginRefused, NotNow, TooManyAttempts, UnknownSubject

PASSWORD = "correct horse battery"
HERE = "127.0.0.1"


@dataclass
class Clock:
    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounts(annotation_url: str, clock: Clock) -> Iterator[Accounts]:
    database = open_database(annotation_url)
    cheap = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    yield Accounts(database, cheap, limits=Limits(free=3, by_name=5), clock=clock)
    cheap.close()
    database.close()


async def join(accounts: Accounts, name: str, role: str = "annotator") -> Principal:
    secret, _ = await accounts.invite(role, by=None)
    opened = await accounts.accept(secret, name, PASSWORD, HERE)
    who = await accounts.who(opened.secret, "browser")
    assert who is not None
    return who


def actions(accounts: Accounts) -> list[str]:
    with accounts.database.read() as session:
        return [entry.action for entry in reversed(audit.entries(session))]


def test_an_invitation_makes_one_account_of_its_role(accounts: Accounts, clock: Clock):
    async def run() -> None:
        secret, _ = await accounts.invite("reviewer", by=None)
        opened = await accounts.accept(secret, " Ada ", PASSWORD, HERE)
        assert (opened.user.name, opened.user.role) == ("ada", "reviewer")
        with pytest.raises(UnknownSubject, match="not valid"):
            await accounts.accept(secret, "eve", PASSWORD, HERE)
        late, _ = await accounts.invite("annotator", by=None, ttl_s=60)
        clock.now_s += 61
        with pytest.raises(UnknownSubject):
            await accounts.accept(late, "late", PASSWORD, HERE)

    asyncio.run(run())
    assert actions(accounts) == ["invitation.made", "invitation.used", "invitation.made"]


def test_the_same_invitation_used_at_once_makes_one_account(accounts: Accounts):
    async def run() -> list[object]:
        secret, _ = await accounts.invite("annotator", by=None)
        tries = (accounts.accept(secret, f"name{index}", PASSWORD, HERE) for index in range(5))
        return await asyncio.gather(*tries, return_exceptions=True)

    won = [one for one in asyncio.run(run()) if not isinstance(one, Exception)]
    with accounts.database.read() as session:
        assert len(won) == 1 == len(stored.users(session))


@pytest.mark.parametrize(
    ("name", "password", "reported"),
    [
        ("ada", "short", "12 to 256"),
        ("ada", "aaaaaaaaaaaaaa", "easy to guess"),
        ("ada", "Ada's password!", "easy to guess"),
        ("a b", PASSWORD, "cannot be"),
        ("<b>", PASSWORD, "cannot be"),
        ("", PASSWORD, "cannot be"),
    ],
)
def test_names_and_passwords_that_do_not_do(accounts: Accounts, name: str, password: str, reported: str):
    async def run() -> None:
        secret, _ = await accounts.invite("annotator", by=None)
        with pytest.raises(ConfigError, match=reported) as error:
            await accounts.accept(secret, name, password, HERE)
        assert password not in str(error.value)
        assert (await accounts.accept(secret, "fine", PASSWORD, HERE)).user.name == "fine"

    asyncio.run(run())


def test_logins_are_new_each_time_and_end(accounts: Accounts, clock: Clock):
    async def run() -> None:
        first = await join(accounts, "ada")
        second = await accounts.log_in("ADA", PASSWORD, HERE, instead_of=first.digest)
        assert await accounts.who(second.secret, "browser") is not None
        assert await accounts.who(second.secret, "program") is None
        with accounts.database.read() as session:
            assert session.get_one(Login, first.digest).ended_at_s is not None
        for _ in range(3):  # what is used does not get idle
            clock.now_s += accounts.lifetimes.idle_s - 60
            assert await accounts.who(second.secret, "browser") is not None
        clock.now_s += accounts.lifetimes.idle_s + 1
        assert await accounts.who(second.secret, "browser") is None
        third = await accounts.log_in("ada", PASSWORD, HERE)
        for _ in range(5):
            clock.now_s += accounts.lifetimes.idle_s - 60
            last = await accounts.who(third.secret, "browser")
        assert last is None  # too old, though it was used
        fourth = await accounts.log_in("ada", PASSWORD, HERE)
        await accounts.log_out((await accounts.who(fourth.secret, "browser")) or first, HERE)
        assert await accounts.who(fourth.secret, "browser") is None

    asyncio.run(run())


def test_guessing_gets_slower_with_each_failure(accounts: Accounts, clock: Clock):
    """So many guesses of one name from one address in a day, whoever they ask: a password is not found that way."""
    accounts.limits = limits = Limits(free=3)

    async def run() -> tuple[list[float], int]:
        await join(accounts, "ada")
        waits: list[float] = []
        num, end_s = 0, clock.now_s + 86400
        while clock.now_s < end_s:  # which the last wait leads to
            try:
                with pytest.raises(LoginRefused):
                    await accounts.log_in("ada", "wrong password!", "10.0.0.1")
                num += 1
            except TooManyAttempts as reported:
                waits.append(reported.retry_after_s)
                clock.now_s += reported.retry_after_s
        with pytest.raises(LoginRefused):
            await accounts.log_in("ada", "wrong password!", "10.0.0.1")
        with pytest.raises(TooManyAttempts):  # even with the right one
            await accounts.log_in("ada", PASSWORD, "10.0.0.1")
        clock.now_s += limits.longest_wait_s
        await accounts.log_in("ada", PASSWORD, "10.0.0.1")
        with pytest.raises(LoginRefused):  # and that forgives
            await accounts.log_in("ada", "wrong password!", "10.0.0.1")
        return waits, num

    waits, num = asyncio.run(run())
    assert waits[:7] == [15, 30, 60, 120, 240, 480, 900] and set(waits[7:]) == {900}
    assert num < 110


def test_an_address_is_not_a_culprit(accounts: Accounts, clock: Clock):
    """Whatever somebody fails at, under other names, their neighbours log in, and join."""

    async def run() -> None:
        await join(accounts, "ada")
        for index in range(120):
            with pytest.raises(LoginRefused):
                await accounts.log_in(f"nobody{index}", "wrong password!", HERE)
        for index in range(120):
            with pytest.raises(UnknownSubject):
                await accounts.invitation(f"guess {index}")
        await accounts.log_in("ada", PASSWORD, HERE)
        await join(accounts, "bob")

    asyncio.run(run())


def test_a_browser_that_got_in_before_gets_in_whoever_fails_beside_it(accounts: Accounts, clock: Clock):
    """Device cookies: an owner is not shut out from the address that others attack the same name from."""

    async def fail(name: str, num: int, device: str | None = None) -> None:
        for _ in range(num):
            clock.now_s += 1
            with pytest.raises((LoginRefused, TooManyAttempts)):
                await accounts.log_in(name, "wrong password!", HERE, device=device)

    async def run() -> None:
        secret, _ = await accounts.invite("annotator", by=None)
        own = (await accounts.accept(secret, "ada", PASSWORD, HERE)).device
        await join(accounts, "bob")
        await fail("ada", 100)
        for device in (None, "", "planted", own[:-1]):
            with pytest.raises(TooManyAttempts):
                await accounts.log_in("ada", PASSWORD, HERE, device=device)
        assert (await accounts.log_in("ada", PASSWORD, HERE, device=own)).device == own
        await fail("ada", 100, "planted")
        await accounts.log_in("ada", PASSWORD, HERE, device=own)
        assert (await accounts.log_in("bob", PASSWORD, HERE, device=own)).device == own, "two people may share a browser"
        await fail("bob", 100, "planted")
        await accounts.log_in("bob", PASSWORD, HERE, device=own)
        await fail("ada", 20, own)  # a stolen browser guesses no faster, and shuts out no other browser
        with pytest.raises(TooManyAttempts):
            await accounts.log_in("ada", PASSWORD, HERE, device=own)
        clock.now_s += 900
        other = await accounts.log_in("ada", PASSWORD, HERE, device="planted")
        assert other.device not in ("planted", own), "a cookie that somebody planted does not become one of ours"
        clock.now_s += accounts.limits.known_s + 1
        await fail("ada", 4)
        with pytest.raises(TooManyAttempts):
            await accounts.log_in("ada", PASSWORD, HERE, device=own)

    asyncio.run(run())


def test_whoever_knows_a_name_does_not_lock_its_owner_out(accounts: Accounts, clock: Clock):
    async def guess(address: str, kind: type[Exception], num: int) -> None:
        for _ in range(num):
            clock.now_s += 1
            with pytest.raises(kind):
                await accounts.log_in("ada", "wrong password!", address)

    async def run() -> None:
        ada = await join(accounts, "ada")
        await accounts.log_in("ada", PASSWORD, HERE)
        await guess("10.0.0.1", LoginRefused, 3)
        await accounts.log_in("ada", PASSWORD, "10.0.0.9")  # from elsewhere she gets in, and forgives them nothing
        await guess("10.0.0.1", TooManyAttempts, 1)
        await guess("10.0.0.2", LoginRefused, 2)
        await guess("10.0.0.3", TooManyAttempts, 1)
        await accounts.log_in("ada", PASSWORD, HERE)  # where she was before, what others do does not count
        await guess(HERE, LoginRefused, 3)
        await guess(HERE, TooManyAttempts, 1)
        await accounts.change_password(ada, PASSWORD, "another good one", HERE)  # who is in is told apart from who tries to get in
        clock.now_s += accounts.limits.window_s + 1
        await accounts.log_in("ada", "another good one", "10.0.0.3")

    asyncio.run(run())


def test_a_stolen_login_does_not_guess_the_password(accounts: Accounts):
    async def run() -> None:
        ada = await join(accounts, "ada")
        for expected in [LoginRefused] * 3 + [TooManyAttempts]:
            with pytest.raises(expected):
                await accounts.change_password(ada, "not the password", "another good one", HERE)
        await accounts.log_in("ada", PASSWORD, HERE)

    asyncio.run(run())


def test_a_hundred_guesses_at_once_are_not_more(accounts: Accounts):
    async def run() -> list[object]:
        await join(accounts, "ada")
        guesses = (accounts.log_in("ada", f"wrong password {index}", HERE) for index in range(40))
        return await asyncio.gather(*guesses, return_exceptions=True)

    refused = [type(one) for one in asyncio.run(run())]
    assert refused.count(LoginRefused) == 3 and refused.count(TooManyAttempts) == 37


def test_a_changed_password_ends_every_login_and_token(accounts: Accounts):
    async def run() -> None:
        ada = await join(accounts, "ada")
        token, _ = await accounts.add_token(ada, PASSWORD, "uploads", HERE)
        assert token.startswith(TOKEN_PREFIX)
        program = await accounts.who(token, "program")
        assert program is not None and program.name == "ada"
        with pytest.raises(LoginRefused):
            await accounts.change_password(ada, "not the password", "another good one", HERE)
        opened = await accounts.change_password(ada, PASSWORD, "another good one", HERE)
        assert await accounts.who(token, "program") is None
        now = await accounts.who(opened.secret, "browser")
        assert now is not None and now.digest != ada.digest
        with pytest.raises(LoginRefused):
            await accounts.log_in("ada", PASSWORD, HERE)

    asyncio.run(run())


def test_a_disabled_account_is_out_at_once(accounts: Accounts):
    async def run() -> None:
        await join(accounts, "root", "admin")
        opened = await accounts.log_in("root", PASSWORD, HERE)
        with pytest.raises(NotNow, match="only account that may administer"):
            await accounts.set_disabled(opened.user.user_id, True, by=None)
        with pytest.raises(NotNow):
            await accounts.set_role(opened.user.user_id, "annotator", by=None)
        await join(accounts, "second", "admin")
        await accounts.set_disabled(opened.user.user_id, True, by=None)
        assert await accounts.who(opened.secret, "browser") is None
        with pytest.raises(LoginRefused):
            await accounts.log_in("root", PASSWORD, HERE)
        await accounts.set_disabled(opened.user.user_id, False, by=None)
        assert await accounts.who(opened.secret, "browser") is None
        await accounts.log_in("root", PASSWORD, HERE)

    asyncio.run(run())


def test_a_forgotten_password_is_set_by_a_link(accounts: Accounts):
    async def run() -> None:
        ada = await join(accounts, "ada")
        secret, _ = await accounts.invite("admin", by=None, for_user=ada.user_id)
        assert (await accounts.invitation(secret))[1] == "ada"
        opened = await accounts.accept(secret, "ignored", "another good one", HERE)
        assert (opened.user.user_id, opened.user.role) == (ada.user_id, "annotator")
        await accounts.log_in("ada", "another good one", HERE)

    asyncio.run(run())


def test_a_link_for_a_new_password_ends_with_the_password_it_was_made_for(accounts: Accounts):
    async def run() -> None:
        ada, other = await join(accounts, "ada"), await join(accounts, "bob")

        async def links() -> list[str]:
            return [(await accounts.invite("annotator", by=None, for_user=ada.user_id))[0] for _ in range(2)]

        async def are_over(*secrets: str) -> None:
            for secret in secrets:
                with pytest.raises(UnknownSubject, match="not valid"):
                    await accounts.accept(secret, "ada", "an intruder's password", HERE)

        first, second = await links()
        bobs, _ = await accounts.invite("annotator", by=None, for_user=other.user_id)
        await accounts.accept(first, "ada", "another good one", HERE)
        await are_over(first, second)
        third, _ = await links()
        opened = await accounts.log_in("ada", "another good one", HERE)
        await accounts.change_password(await accounts.who(opened.secret, "browser") or ada, "another good one", PASSWORD, HERE)
        await are_over(third)
        fourth, _ = await links()
        for is_disabled in (True, False):
            await accounts.set_disabled(ada.user_id, is_disabled, by=None)
        await are_over(fourth)
        await accounts.accept(bobs, "bob", "another good one", HERE)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["demoted", "disabled"])
def test_the_invitations_of_who_was_an_admin_are_void(accounts: Accounts, how: str):
    async def run() -> None:
        root, eve = await join(accounts, "root", "admin"), await join(accounts, "eve", "admin")
        hers, _ = await accounts.invite("admin", by=eve)
        reset, _ = await accounts.invite("admin", by=eve, for_user=root.user_id)
        used, _ = await accounts.invite("annotator", by=eve)
        theirs, _ = await accounts.invite("annotator", by=root)
        await accounts.accept(used, "ann", PASSWORD, HERE)
        await accounts.set_role(eve.user_id, "admin", by=root)
        await accounts.invitation(hers)
        if how == "demoted":
            await accounts.set_role(eve.user_id, "annotator", by=root)
        else:
            await accounts.set_disabled(eve.user_id, True, by=root)
        for secret in (hers, reset):
            with pytest.raises(UnknownSubject, match="not valid"):
                await accounts.accept(secret, "mallory", PASSWORD, HERE)
        with pytest.raises(AccessDenied):
            await accounts.invite("admin", by=eve)  # as a request that was under way meanwhile
        await accounts.accept(theirs, "bob", PASSWORD, HERE)

    asyncio.run(run())


def test_programs_have_tokens_and_no_password(accounts: Accounts, clock: Clock):
    async def run() -> None:
        first, user = await accounts.add_program("scripted", "annotator", "the quickstart", ttl_s=3600)
        second, again = await accounts.add_program("scripted", "annotator", "a second")
        assert user.user_id == again.user_id and first != second
        with pytest.raises(LoginRefused):
            await accounts.log_in("scripted", "", HERE)
        with pytest.raises(NotNow):
            await accounts.invite("annotator", by=None, for_user=user.user_id)
        clock.now_s += 3601
        assert await accounts.who(first, "program") is None
        assert await accounts.who(second, "program") is not None

    asyncio.run(run())


def test_nothing_secret_is_kept(accounts: Accounts):
    async def run() -> list[str]:
        ada = await join(accounts, "ada")
        secret, _ = await accounts.invite("annotator", by=ada)
        token, _ = await accounts.add_token(ada, PASSWORD, "uploads", HERE)
        opened = await accounts.log_in("ada", PASSWORD, HERE)
        with pytest.raises(LoginRefused):
            await accounts.log_in("my-typed-password", "wrong password!", HERE)
        return [secret, token, opened.secret, PASSWORD, "my-typed-password", "wrong password!"]

    secrets = asyncio.run(run())
    with accounts.database.read() as session:
        rows = [row for table in (User, Invitation, Login, LoginAttempt) for row in session.scalars(select(table))]
        kept = [str(vars(row)) for row in [*rows, *audit.entries(session)]]
    assert [secret for secret in secrets for row in kept if secret in row] == []
