"""What is off by default: files, proxying; and TLS between twins."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from polybus.errors import ConfigError, Refused
from polybus.protocols.rmb.message import parse_lenient
from polybus.protocols.rmb.signature import digest, parse_signature, upload_digest, verify
from polybus.protocols.rmb.uploads import parse_multipart
from tests.protocols.rmb.posting import http, message, sign
from tests.protocols.rmb.twins import Twin, World, signer_of


def b64(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.b64encode(text).decode()


async def test_a_file_is_sent_to_several_twins(world: World, tmp_path: Path):
    one, two, three = await world.start(1, 2, 3, uploads=tmp_path / "files")
    (tmp_path / "picture").write_bytes(b"\x00\r\n--pixels")
    dat = b64({"path": str(tmp_path / "picture"), "cmd": "demo.file"})
    ret = await one.push(cmd="msgbus.system.file.upload", dst=[2, 3], dat=dat)
    for _ in range(2):
        answer = await one.read(ret)
        assert (answer["err"], base64.b64decode(answer["dat"])) == (None, b"success")
    for twin in (two, three):
        notice = await twin.request("demo.file")
        assert (notice["dst"], notice["uid"], notice["exp"], notice["try"]) == ([1], "", 0, 0)
        path = Path(base64.b64decode(notice["dat"]).decode())
        assert path.parent == (tmp_path / "files").resolve()
        assert path.read_bytes() == b"\x00\r\n--pixels"


async def test_files_are_neither_sent_nor_taken_unless_that_is_set(world: World, tmp_path: Path):
    one, two = await world.start(1, 2)
    dat = b64({"path": str(world.directory), "cmd": "demo.file"})
    answer = await one.read(await one.push(cmd="msgbus.system.file.upload", dat=dat))
    assert "uploads are off" in answer["err"]
    assert (await http(two.port, "/zbus-upload", b""))[0] == 405


@pytest.mark.parametrize("dat", ["", b64({"path": "/nowhere", "cmd": "x"}), b64([])])
async def test_a_file_that_cannot_be_sent_is_told(world: World, tmp_path: Path, dat):
    one, _two = await world.start(1, 2, uploads=tmp_path / "files")
    answer = await one.read(await one.push(cmd="msgbus.system.file.upload", dat=dat))
    assert answer["err"].startswith("upload failed: ")


async def test_a_file_without_the_senders_signature_is_refused(world: World, tmp_path: Path):
    world.twins[1] = Twin(world, 1)
    (two,) = await world.start(2, uploads=tmp_path / "files")
    now = world.now()
    good = {
        "rmb-source-id": "1",
        "rmb-timestamp": str(now),
        "rmb-upload-cmd": "demo.file",
        "rmb-signature": signer_of(1).sign(upload_digest(now, 1)),
        "content-type": "multipart/form-data; boundary=xx",
    }
    body = b"--xx\r\ncontent-disposition: form-data\r\n\r\nhello\r\n--xx--\r\n"
    bad: list[dict[str, str]] = [
        {"rmb-source-id": "2"},
        {"rmb-source-id": "9"},
        {"rmb-source-id": "one"},
        {"rmb-timestamp": str(now - 61)},
        {"rmb-upload-cmd": "system.local"},
        {"rmb-signature": ""},
        {"content-type": "text/plain"},
        {"content-type": "multipart/form-data; boundary=yy"},
    ]
    for change in bad:
        status, _, text = await http(two.port, "/zbus-upload", body, headers=good | change)
        assert status == 400, change
        assert text.startswith(b"bad request: ")
    assert not (tmp_path / "files").exists()
    assert (await http(two.port, "/zbus-upload", body, headers=good))[0] == 202
    await two.request("demo.file")


def test_parts_of_a_body_are_taken_as_they_are():
    kind = 'multipart/form-data; boundary="b b"'
    body = b"--b b\r\na: b\r\n\r\none\r\n--b b\r\n\r\n\r\n--b\r\n--b b--"
    assert parse_multipart(kind, body) == [b"one", b"\r\n--b"]
    with pytest.raises(Refused):
        parse_multipart(kind, b"--b b\r\nno head\r\n--b b--")
    with pytest.raises(Refused):
        parse_multipart(kind, b"--b b\r\n\r\nno end")


def envelope(now: int, payload: bytes, **fields: Any) -> bytes:
    whole = message(now, cmd="system.proxy.request", dat=base64.b64encode(payload).decode())
    return sign(whole | fields)


async def test_a_request_in_an_envelope_is_served_and_signed_back(world: World):
    one, two = await world.start(1, 2, proxy=True)
    world.twins[3] = Twin(world, 3)
    world.write_directory()
    two.room.directory.forget(3)
    two.echo()
    payload = sign(message(world.now(), src=3, uid="inner", dat="aW5uZXI="))
    dat = base64.b64encode(payload).decode()
    ret = await one.push(cmd="system.proxy.request", dat=dat)
    answer = await one.read(ret)
    assert answer["err"] == ""
    inner = json.loads(base64.b64decode(answer["dat"]))
    assert (inner["dat"], inner["src"], inner["dst"]) == ("aW5uZXI=", 2, [3])
    assert inner["ret"] == "msgbus.system.proxy.reply"
    m = parse_lenient(json.dumps(inner).encode())
    assert verify(parse_signature(m.sig), digest(m), signer_of(2).public_key) == ""


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda now: sign(message(now, src=3, dst=[9])), "invalid payload message destination"),
        (lambda now: sign(message(now - 50, src=3)), "message has expired"),
        (lambda now: sign(message(now, src=3), twin=1), "verification failed"),
        (lambda now: sign(message(now, src=9), twin=9), "source twin 9 not found"),
        (lambda now: sign(message(now, src=3, cmd="system.local")), "cannot be served"),
        (lambda now: b"{", "truncated"),
    ],
    ids=["destination", "expired", "signature", "unknown", "reserved", "garbage"],
)
async def test_an_envelope_that_cannot_be_served_is_answered(world: World, make, why):
    one, two = await world.start(1, 2, proxy=True)
    world.twins[3] = Twin(world, 3)
    world.write_directory()
    two.room.directory.forget(3)
    dat = base64.b64encode(make(world.now())).decode()
    answer = await one.read(await one.push(cmd="system.proxy.request", dat=dat))
    assert why in answer["err"]


async def test_proxying_is_off_by_default(world: World):
    one, _two = await world.start(1, 2)
    answer = await one.read(await one.push(cmd="system.proxy.request"))
    assert "400 Bad Request" in answer["err"]


async def test_twins_are_reached_over_tls(world: World, tmp_path: Path):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    settings = {"ca": str(tmp_path / "ca.pem")}
    one, two = Twin(world, 1, **settings), Twin(world, 2, **settings)
    world.twins = {1: one, 2: two}
    for twin in (one, two):
        files = f"cert={tmp_path / 'cert.pem'}&key={tmp_path / 'key.pem'}"
        twin.listen = f"rmb+tls://127.0.0.1:{twin.port}?{files}"
    secure = {f"twin{t.number}": {"address": f"https://127.0.0.1:{t.port}"} for t in (one, two)}
    world.write_directory(**secure)
    for twin in (one, two):
        await twin.start_redis()
        await twin.start()
    two.echo()
    assert (await one.read(await one.push()))["src"] == 2


async def test_a_twin_whose_certificate_is_not_trusted_is_not_posted_to(
    world: World, tmp_path: Path
):
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    one, two = Twin(world, 1), Twin(world, 2)
    world.twins = {1: one, 2: two}
    two.listen = (
        f"rmb+tls://127.0.0.1:{two.port}?cert={tmp_path / 'both.pem'}&key={tmp_path / 'both.pem'}"
    )
    world.write_directory(twin2={"address": f"https://127.0.0.1:{two.port}"})
    for twin in (one, two):
        await twin.start_redis()
        await twin.start()
    answer = await one.read(await one.push(**{"try": 1}))
    assert "certificate" in answer["err"].lower()


@pytest.mark.parametrize("services", [("**",), ("a.*.b",), ("a/b",), ("",)])
async def test_services_that_cannot_be_offered_are_refused(world: World, services):
    with pytest.raises(ConfigError, match=r"rmb\.services"):
        await world.start(1, services=services)
