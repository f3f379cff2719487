//! `petrel lua FILE`.

use std::process::{Command, Output};

fn lua(script: &str, arguments: &[&str]) -> (Output, String) {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("script.lua");
    std::fs::write(&path, script).expect("written");
    std::fs::write(home.path().join("file.txt"), "text of a file").expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_petrel"))
        .arg("lua")
        .arg(&path)
        .args(["--root"])
        .arg(home.path())
        .args(arguments)
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[track_caller]
fn says(text: &str, lines: &[&str]) {
    let mut rest = text;
    for line in lines {
        let Some((_, behind)) = rest.split_once(line) else {
            panic!("no {line:?} in\n{rest}\nof\n{text}");
        };
        rest = behind;
    }
}

#[test]
fn a_script_is_run_and_traced() {
    let script = "local path = lighty.r.req_attr['uri.path']\n\
                  lighty.header['X-A'] = path .. '\\n' and 'b'\n\
                  print('seen', lighty.r.req_header['X-Given'])\n\
                  lighty.content = { 'hello ', path, '\\n' }\n\
                  petrel.sleep(0.01)\n\
                  return 203";
    let (output, text) = lua(script, &["--url", "/x?y=1", "--header", "X-Given: z"]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    says(
        &text,
        &[
            "request GET /x?y=1\n",
            "read    lighty.r.req_attr[\"uri.path\"] = \"/x\"\n",
            "write   lighty.header[\"X-A\"] = \"b\"\n",
            "read    lighty.r.req_header[\"X-Given\"] = \"z\"\n",
            "print   seen\tz\n",
            "write   lighty.content = { \"hello \", \"/x\", \"\\n\" }\n",
            "call    petrel.sleep(0.01)\n",
            "return  203\n",
            "took    ",
            "HTTP/1.1 203 ",
            "X-A: b\n",
            "\n\nhello /x\n",
        ],
    );
}

#[test]
fn errors_point_into_the_source() {
    let script = "local function f()\n  error('oh')\nend\n\nf() return 1";
    let (output, text) = lua(script, &[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    says(
        &text,
        &[
            "error ",
            "script.lua:2: oh\n",
            "2 |   error('oh')\n",
            "5 | f() return 1\n",
            "HTTP/1.1 500 ",
        ],
    );
    let (output, text) = lua("x = = 1", &[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    says(&text, &["error ", "script.lua:1:", "1 | x = = 1\n"]);
    assert!(!text.contains("trace.lua"), "{text}");
    let (output, text) = lua("while true do end", &[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let lines = [
        "log ",
        "script.lua: stopped",
        "script.lua:1: in main chunk\" client=",
        "HTTP/1.1 500 ",
    ];
    says(&text, &lines);
    assert!(!text.contains("trace.lua"), "{text}");
}

#[test]
fn scripts_of_every_place_can_be_tried() {
    let script = "lighty.r.req_attr['physical.path'] = lighty.r.req_attr['physical.doc-root'] .. '/file.txt'";
    let (output, text) = lua(script, &["--hook", "physical-path", "--url", "/other"]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    says(
        &text,
        &[
            "write   lighty.r.req_attr[\"physical.path\"]",
            "HTTP/1.1 200 ",
            "text of a file\n",
        ],
    );
    let script = "lighty.r.resp_header['X-Seen'] = tostring(lighty.r.req_item.http_status)";
    let (output, text) = lua(script, &["--hook", "response-start", "--url", "/file.txt"]);
    assert_eq!(output.status.code(), Some(0), "{text}");
    says(
        &text,
        &["HTTP/1.1 200 ", "X-Seen: 200\n", "text of a file\n"],
    );
}

#[test]
fn what_cannot_be_tried_is_told() {
    for arguments in [
        &["--url", "x"][..],
        &["--body", "/nonexistent"],
        &["--root", "/nonexistent"],
    ] {
        let (output, text) = lua("return 200", arguments);
        assert_eq!(output.status.code(), Some(255), "{arguments:?}: {text}");
    }
}
