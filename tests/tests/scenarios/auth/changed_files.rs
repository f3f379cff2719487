//! Files with users that change while clients come.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::auth::like_lighttpd::base64;
use crate::auth::{HASTY, USERS, guarded};

#[test]
fn a_file_that_is_replaced_under_load_lets_in_all_the_time() {
    for engine in ["inotify", "disable"] {
        let config = format!("{HASTY}\nserver.stat-cache-engine = \"{engine}\"");
        let server = guarded(USERS, &config).start();
        let request = format!(
            "GET /private/ HTTP/1.1\r\nHost: petrel.test\r\nAuthorization: Basic {}\r\n\r\n",
            base64(b"sha:secret")
        );
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let mut client = server.client();
                        for _ in 0..50 {
                            assert_eq!(client.send(&request).response().status, 200);
                        }
                    }
                });
            }
            for number in 0..100 {
                // The user is in another place each time, and the file of another length.
                let others: String = (0..number).map(|other| format!("u{other}:x\n")).collect();
                server.tree().replace("users", format!("{others}{USERS}"));
                assert_eq!(server.get("/private/").status, 401);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(!server.log().contains("users cannot be looked up"));
    }
}

#[test]
fn zeros_and_half_a_line_let_no_client_in_and_harm_no_line_before() {
    let hash = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";
    let content = format!("anna:{hash}\nzero\0:{hash}\nnul:{hash}\0\nbob:{hash}");
    let server = guarded(&content, HASTY).start();
    let statuses = ["anna", "zero", "nul", "bob", ""].map(|name| {
        let pair = base64(format!("{name}:secret").as_bytes());
        let field = format!("Basic {pair}");
        let fields = [("Authorization", field.as_str())];
        let answer = server.client().request("GET", "/private/", &fields);
        answer.status
    });
    // bob's line is not at its end yet.
    assert_eq!(statuses, [200, 401, 401, 401, 401]);
    server.expect_log("2 lines are left out, line 2 first");
    server
        .tree()
        .write("users", &content)
        .modified("users", 1_700_000_000);
    let field = format!("Basic {}", base64(b"bob:secret"));
    assert!(petrel_tests::eventually(|| {
        let fields = [("Authorization", field.as_str())];
        server.client().request("GET", "/private/", &fields).status == 200
    }));
}
