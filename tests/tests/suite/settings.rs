//! A server's settings: flags, the environment and a file, and what `--print-config` shows of them.

use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use cellwright_tests::binary::{cellwright, cellwright_in, done, program, refused};
use tempfile::TempDir;

#[test]
fn the_environment_goes_before_the_file_and_after_flags() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("cellwright.toml");
    std::fs::write(&file, "listen = [\"127.0.0.1:7001\"]\npolicy = \"graph:7\"\nrelease = \"subgraph\"\n").unwrap();
    let environment = [
        ("CELLWRIGHT_CONFIG", file.to_str().unwrap()),
        ("CELLWRIGHT_LISTEN", "127.0.0.1:7002,127.0.0.1:7003"),
        ("CELLWRIGHT_POLICY", "graph:8"),
        ("CELLWRIGHT_DRAIN_SECONDS", "7"),
        ("CELLWRIGHT_DATA", "d"),
    ];
    let printed = done(cellwright_in(&environment, &["serve", "--policy", "graph:9", "--print-config"], ""));
    for (name, value, source) in [
        ("listen ", "[\"127.0.0.1:7002\", \"127.0.0.1:7003\"]", "environment"),
        ("policy ", "\"graph:9\"", "flag"),
        ("release ", "\"subgraph\"", "file"),
        ("drain_seconds ", "7", "environment"),
        ("in_flight_max ", "16384", "default"),
    ] {
        let line = printed.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains(value) && line.ends_with(&format!("# {source}")), "{line}");
    }
}

#[test]
fn settings_have_one_precedence() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("cellwright.toml");
    std::fs::write(
        &file,
        "listen = \"localhost:7001\"\npolicy = \"graph:7\"\nworker = \"cpu:threads=2\"\notlp_endpoint = \"http://localhost:4318\"\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let printed = done(cellwright(&["serve", "--config", file, "--policy", "graph:9", "--data", "d", "--print-config"], ""));
    let line = |name: &str| printed.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    for (name, value, source) in [
        ("listen", "[\"127.0.0.1:7001\"]", "file"),
        ("policy", "\"graph:9\"", "flag"),
        ("workers", "[\"cpu:threads=2\"]", "file"),
        ("drain_seconds", "30", "default"),
        ("otlp_endpoint", "\"http://localhost:4318\"", "file"),
    ] {
        let line = line(name);
        assert!(line.contains(value) && line.ends_with(source), "{line}");
    }
    // What is printed is a configuration file itself.
    std::fs::write(file, &printed).unwrap();
    let again = done(cellwright(&["serve", "--config", file, "--print-config"], ""));
    let settings = |text: &str| text.lines().map(|line| line.split("  #").next().unwrap().trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(settings(&again), settings(&printed));

    for (text, said) in [
        ("listne = []\n", "line 1: listne: unknown field `listne`"),
        ("otlp_endpoint = \"https://collector\"\n", "line 1: otlp_endpoint: `https://collector` does not begin with http://"),
        ("# Mine.\npolicy = \"nonsense\"\n", "line 2: policy: `nonsense` is not a policy; the policies are `adaptive`, `cellular`, "),
        ("release = \"late\"\n", "line 1: release: `late` is not a release rule; the rules are `node` and `subgraph`"),
        ("workers = [\n  \"cpu\",\n  \"gpu\",\n]\n", "line 1: workers: "),
        ("listen = \"8000\"\n", "line 1: listen: `8000` is not an address and a port, such as 127.0.0.1:8000"),
        ("listen = 8000\n", "line 1: listen: expected a text, or a list of texts"),
        ("in_flight_max = 0\n", "line 1: in_flight_max: 0 is not in 1..=1048576"),
        ("data = \"d\"\nin_flight_max = 2000000\n", "line 2: in_flight_max: 2000000 is not in 1..=1048576"),
        ("connections_max = 0\n", "line 1: connections_max: 0 is not in 1..="),
        ("body_bytes_max = 0\n", "line 1: body_bytes_max: 0 is not in 1..="),
        ("upload_bytes_max = 0\n", "line 1: upload_bytes_max: 0 is not in 1..="),
        ("body_bytes_max = \"64 MiB\"\n", "line 1: body_bytes_max: invalid type: string \"64 MiB\", expected a whole number from 0 on"),
        ("policy = \"serial\"\ndata = \"\"\n", "line 2: data: the path is empty"),
        ("record = \"\"\n", "line 1: record: the path is empty"),
        ("idle_seconds = 0\n", "line 1: idle_seconds: 0 is not in 1..="),
        ("header_seconds = 0\n", "line 1: header_seconds: 0 is not in 1..="),
        ("body_seconds = 0\n", "line 1: body_seconds: 0 is not in 1..="),
        ("request_seconds_max = 0\n", "line 1: request_seconds_max: 0 is not in 1..="),
        ("write_seconds = 0\n", "line 1: write_seconds: 0 is not in 1..="),
        ("drain_delay = -1\n", "line 1: drain_delay: invalid value: integer `-1`, expected a whole number from 0 on"),
        ("drain_seconds = -1\n", "line 1: drain_seconds: invalid value: integer `-1`, expected a whole number from 0 on"),
    ] {
        std::fs::write(file, text).unwrap();
        let sentence = refused(cellwright(&["serve", "--config", file, "--print-config"], ""));
        assert!(sentence.contains(&format!("the configuration file {file} cannot be used: {said}")), "{sentence}");
    }
    let endless = refused(cellwright(&["serve", "--config", "/dev/zero", "--print-config"], ""));
    assert!(endless.contains("it has more than 1048576 bytes"), "{endless}");
    let open = refused(cellwright(&["serve", "--listen", "0.0.0.0:0", "--data", folder.path().to_str().unwrap()], ""));
    assert!(open.contains(&format!("create one with `cellwright keys create --admin --data {}`", folder.path().display())), "{open}");
}

#[test]
fn any_path_that_is_text_can_be_printed_and_read_again() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("cellwright.toml");
    let file = file.to_str().unwrap();
    for path in ["a\u{200b}b", "a\u{1b}[31m", "a\"b\\c", "a\u{7f}b", "données", "a b # c"] {
        let printed = done(cellwright(&["serve", "--data", path, "--record", path, "--print-config"], ""));
        assert!(!printed.contains(['\u{1b}', '\u{7f}']), "{printed:?}");
        std::fs::write(file, &printed).unwrap();
        let again = done(cellwright(&["serve", "--config", file, "--print-config"], ""));
        let settings = |text: &str| text.lines().map(|line| line.rsplit_once("  # ").unwrap().0.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(settings(&again), settings(&printed));
    }
    let mut command = Command::new(program());
    command.args(["serve", "--print-config", "--data"]).arg(std::ffi::OsStr::from_bytes(b"a\xff"));
    let refused = command.output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not UTF-8, so a configuration file cannot hold it"), "{refused:?}");
}
