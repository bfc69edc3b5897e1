from __future__ import annotations

from pathlib import Path

import pytest

from polybus.errors import ConfigError
from polybus.server.config import DEFAULT_LISTEN, Capture, Config
from polybus.server.load import SETTINGS, load
from polybus.transports.url import Address, parse_address


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "polybus.toml"
        path.write_text(text)
        return path

    return write


def test_without_any_source_the_defaults_are_in_force():
    effective = load()
    assert effective.config == Config()
    assert set(effective.origins.values()) == {"default"}


def test_flags_beat_variables_and_variables_beat_the_file(write):
    file = write(
        'data = "from-file"\nlisten = ["tcp://127.0.0.1:1"]\n[limits]\nmax_frame = "1MiB"\n'
    )
    env = {"POLYBUS_DATA": "from-env", "POLYBUS_LIMITS_MAX_FRAME": "2MiB"}
    effective = load(file, env, {"data": "from-flag", "listen": None})
    assert effective.config.data == Path("from-flag")
    assert effective.config.limits.max_frame == 2 << 20
    assert effective.config.listen == ("tcp://127.0.0.1:1",)
    assert effective.origins["data"] == "--data"
    assert effective.origins["limits.max_frame"] == "POLYBUS_LIMITS_MAX_FRAME"
    assert effective.origins["listen"] == str(file)
    assert effective.origins["gsb.ping_timeout"] == "default"


def test_the_file_can_be_named_by_a_variable(write):
    file = write('[log]\nlevel = "debug"\n')
    assert load(env={"POLYBUS_CONFIG": str(file)}).config.log.level == "debug"


def test_numbers_in_the_file_are_seconds_and_bytes(write):
    limits = load(
        write("[limits]\ndrain = 2\nwrite_timeout = 0.5\nmax_frame = 4096\n")
    ).config.limits
    assert (limits.drain, limits.write_timeout, limits.max_frame) == (2, 0.5, 4096)


def test_listeners_in_a_variable_are_separated_by_commas():
    config = load(env={"POLYBUS_LISTEN": "tcp://127.0.0.1:1, unix:/tmp/x"}).config
    assert config.listen == ("tcp://127.0.0.1:1", "unix:/tmp/x")


def test_an_empty_data_folder_means_none(write):
    assert load(write('data = ""')).config.data is None
    assert load(env={"POLYBUS_DATA": ""}).config.data is None
    assert load(flags={"data": ""}).config.data is None


@pytest.mark.parametrize(
    ("url", "listener"),
    [
        ("tcp://127.0.0.1:7464", "gsb+tcp://127.0.0.1:7464"),
        ("tcp://127.0.0.1", "gsb+tcp://127.0.0.1:7464"),
        ("127.0.0.1:1234", "gsb+tcp://127.0.0.1:1234"),
        ("gsb+tcp://[::1]:0", "gsb+tcp://[::1]:0"),
        ("unix:/tmp/x.sock", "gsb+unix:///tmp/x.sock"),
        ("unix:///tmp/x.sock", "gsb+unix:///tmp/x.sock"),
    ],
)
def test_gsb_url_adds_a_pinned_listener_to_those_that_are_there(url, listener):
    effective = load(env={"GSB_URL": url})
    assert effective.config.listen == (DEFAULT_LISTEN, listener)
    assert effective.origins["listen"] == "default + GSB_URL"


def test_gsb_url_keeps_the_files_of_a_tls_listener():
    effective = load(env={"GSB_URL": "tls://127.0.0.1:1?cert=/a b.pem&key=/k.pem"})
    options = {"cert": "/a b.pem", "key": "/k.pem"}
    address = parse_address(effective.config.listen[1])
    assert address == Address("tls", "127.0.0.1", 1, "", "gsb", options)


def test_a_gsb_url_that_is_none_is_named():
    with pytest.raises(ConfigError, match="GSB_URL: bad address 'http://x'"):
        load(env={"GSB_URL": "http://x"})


def test_gsb_ping_timeout_is_honoured_and_our_own_name_wins():
    assert load(env={"GSB_PING_TIMEOUT": "5"}).config.gsb.ping_timeout == 5
    both = load(env={"POLYBUS_GSB_PING_TIMEOUT": "7s", "GSB_PING_TIMEOUT": "5"})
    assert both.config.gsb.ping_timeout == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nmax_frme = 1\n", "unknown key limits.max_frme; did you mean limits.max_frame?"),
        ('lisen = ["x"]\n', "unknown key lisen; did you mean listen?"),
        ("[limit]\nmax_frame = 1\n", "unknown key limit; did you mean limits?"),
        ("limits = 3\n", "limits is a section; write [limits]"),
        ('[limits]\nmax_frame = "big"\n', "limits.max_frame: 'big' is not a size (such as 64MiB)"),
        ("[limits]\nmax_frame = true\n", "limits.max_frame: True is not a size"),
        ("[limits]\ndrain = -1\n", "limits.drain: '-1' is not a duration"),
        ('[t2]\nstop = "sometimes"\n', "t2.stop: 'sometimes' is none of local, any, never"),
        ("listen = [1]\n", "listen: [1] is not a list of texts"),
        ("data = 7\n", "data: 7 is not a text"),
        ("data = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_file_and_key(write, text, message):
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert message in caught.value.text
    assert str(file) in caught.value.text


def test_an_unreadable_file_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*absent.toml: No such file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)


def test_a_file_that_is_not_text_is_a_clear_error(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(path)


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("POLYBUS_LIMITS_MAX_FRAM", "POLYBUS_LIMITS_MAX_FRAME"),
        ("POLYBUS_LISTN", "POLYBUS_LISTEN"),
        ("POLYBUS_T2_STOPP", "POLYBUS_T2_STOP"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_the_nearest_name(variable, near):
    with pytest.raises(ConfigError, match=f"unknown variable {variable}; did you mean {near}"):
        load(env={variable: "1"})


def test_variables_that_are_not_settings_are_left_alone():
    platform = {"POLYBUS_SERVICE_HOST": "10.0.0.1", "POLYBUS_PORT": "tcp://10.0.0.1:1"}
    assert load(env={**platform, "POLYBUS_PURE": "1", "HOME": "/"}).config == Config()


def test_a_bad_value_in_a_variable_names_the_variable():
    with pytest.raises(ConfigError, match=r"POLYBUS_LIMITS_DRAIN: limits.drain: 'soon'"):
        load(env={"POLYBUS_LIMITS_DRAIN": "soon"})


def test_every_default_is_shown_in_a_form_that_reads_back(write):
    lines = []
    for key, setting in SETTINGS.items():
        shown = setting.show(setting.default)
        lines.append(f'{key} = ["{shown}"]' if key == "listen" else f'{key} = "{shown}"')
    assert load(write("\n".join(lines))).config == Config()


def test_tables_in_a_list_become_values(tmp_path):
    file = tmp_path / "polybus.toml"
    file.write_text(
        '[[capture]]\npattern = "price/**"\ntopic = "prices"\n'
        '[[capture]]\npattern = "wallet/**"\ntopic = "calls"\nkind = "call"\n'
    )
    capture = load(file).config.capture
    assert capture == (
        Capture(pattern="price/**", topic="prices"),
        Capture(pattern="wallet/**", topic="calls", kind="call"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[capture]]\npattern = "a"\n', "capture: topic is missing"),
        ('[[capture]]\npat = "a"\ntopic = "b"\n', "unknown key pat; known are pattern"),
        ('[[capture]]\npattern = "a"\ntopic = 1\n', "1 is not a str"),
        ('[capture]\npattern = "a"\n', "list of tables"),
    ],
)
def test_a_bad_table_names_its_fault(tmp_path, text, message):
    file = tmp_path / "polybus.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(file)
