//! A change in the file system is visible to every request sent 20 ms later, on every worker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use petrel_tests::{Client, Server, Tree};

/// Enough connections that both workers have some, since each worker has a cache of its own.
fn clients(server: &Server) -> Vec<Client> {
    (0..12).map(|_| server.client()).collect()
}

/// A server that has cached `target`.
struct Scene {
    server: Server,
    clients: Vec<Client>,
    target: String,
}

impl Scene {
    fn new(config: &str, target: &str, make: impl FnOnce(&Tree)) -> Scene {
        let server = Server::build().tree(make).config(config).start();
        let clients = clients(&server);
        let mut scene = Scene {
            server,
            clients,
            target: target.to_owned(),
        };
        scene.answers();
        scene.answers();
        scene
    }

    fn expect(&mut self, status: u16, body: &str) -> &mut Scene {
        for answer in self.answers() {
            assert_eq!((answer.0, answer.1.as_str()), (status, body));
        }
        self
    }

    fn expect_status(&mut self, status: u16) -> &mut Scene {
        for answer in self.answers() {
            assert_eq!(answer.0, status, "{}", answer.1);
        }
        self
    }

    fn change(&mut self, change: impl FnOnce(&Tree)) -> &mut Scene {
        change(self.server.tree());
        std::thread::sleep(Duration::from_millis(20));
        self
    }

    fn answers(&mut self) -> Vec<(u16, String)> {
        let target = &self.target;
        let answers = self.clients.iter_mut().map(|client| client.get(target));
        answers
            .map(|response| (response.status, response.text()))
            .collect()
    }
}

#[test]
fn a_changed_file() {
    let mut scene = Scene::new("", "/a.txt", |tree| {
        tree.write("www/a.txt", "old");
    });
    for round in 0..5 {
        let content = format!("changed {round}");
        scene.change(|tree| {
            tree.write("www/a.txt", &content);
        });
        scene.expect(200, &content);
    }
}

#[test]
fn a_changed_large_file() {
    let mut scene = Scene::new("", "/a.txt", |tree| {
        tree.write("www/a.txt", "o".repeat(200_000));
    });
    let new = "n".repeat(150_000);
    scene
        .change(|tree| {
            tree.write("www/a.txt", &new);
        })
        .expect(200, &new);
}

#[test]
fn a_change_that_keeps_size_and_time() {
    let mut scene = Scene::new("", "/a.txt", |tree| {
        tree.write("www/a.txt", "old")
            .modified("www/a.txt", 1_000_000_000);
    });
    scene
        .change(|tree| {
            tree.write("www/a.txt", "new")
                .modified("www/a.txt", 1_000_000_000);
        })
        .expect(200, "new");
}

#[test]
fn a_replaced_file() {
    let mut scene = Scene::new("", "/a.txt", |tree| {
        tree.write("www/a.txt", "old");
    });
    for round in 0..5 {
        let content = format!("replaced {round}");
        scene.change(|tree| {
            tree.replace("www/a.txt", &content);
        });
        scene.expect(200, &content);
    }
}

#[test]
fn a_deleted_file_and_one_that_comes_back() {
    let mut scene = Scene::new("", "/a.txt", |tree| {
        tree.write("www/a.txt", "old");
    });
    scene
        .expect(200, "old")
        .change(|tree| {
            tree.remove("www/a.txt");
        })
        .expect_status(404)
        .change(|tree| {
            tree.write("www/a.txt", "back");
        })
        .expect(200, "back");
}

#[test]
fn a_file_that_was_missing() {
    let mut scene = Scene::new("", "/dir/sub/a.txt", |tree| {
        tree.directory("www");
    });
    scene
        .expect_status(404)
        .change(|tree| {
            tree.directory("www/dir");
        })
        .expect_status(404)
        .change(|tree| {
            tree.directory("www/dir/sub");
        })
        .expect_status(404)
        .change(|tree| {
            tree.write("www/dir/sub/a.txt", "there");
        })
        .expect(200, "there");
}

#[test]
fn a_file_whose_permission_goes() {
    // Root may read every file, so the server must run as another user to be refused.
    let user = if rustix::process::geteuid().is_root() {
        "server.username = \"nobody\"\nserver.groupname = \"nogroup\""
    } else {
        ""
    };
    let mut scene = Scene::new(user, "/a.txt", |tree| {
        tree.write("www/a.txt", "readable").mode("www/a.txt", 0o644);
        tree.write("error.log", "").mode("error.log", 0o666);
    });
    scene
        .expect(200, "readable")
        .change(|tree| {
            tree.mode("www/a.txt", 0o000);
        })
        .expect_status(403)
        .change(|tree| {
            tree.mode("www/a.txt", 0o644);
        })
        .expect(200, "readable");
}

#[test]
fn a_renamed_directory() {
    let mut scene = Scene::new("", "/dir/sub/a.txt", |tree| {
        tree.write("www/dir/sub/a.txt", "old")
            .write("www/other/sub/a.txt", "other");
    });
    scene
        .expect(200, "old")
        .change(|tree| {
            tree.rename("www/dir", "www/gone");
        })
        .expect_status(404)
        .change(|tree| {
            tree.rename("www/other", "www/dir");
        })
        .expect(200, "other");
}

#[test]
fn a_release_switched_by_a_symlink_in_the_roots_own_path() {
    let root = "server.document-root = var.dir + \"/current/public\"";
    let mut scene = Scene::new(root, "/a.txt", |tree| {
        tree.write("release-1/public/a.txt", "first")
            .write("release-2/public/a.txt", "second")
            .symlink("release-1", "current");
    });
    scene.expect(200, "first");
    for (release, content) in [
        ("release-2", "second"),
        ("release-1", "first"),
        ("release-2", "second"),
    ] {
        scene.change(|tree| {
            tree.symlink(release, "next").rename("next", "current");
        });
        scene.expect(200, content);
    }
    scene
        .change(|tree| {
            tree.write("release-2/public/a.txt", "second, changed");
        })
        .expect(200, "second, changed");
}

#[test]
fn a_symlink_to_a_file_that_changes_and_moves_on() {
    let mut scene = Scene::new("", "/link.txt", |tree| {
        tree.directory("www")
            .write("elsewhere/one.txt", "one")
            .write("elsewhere/two.txt", "two")
            .symlink("../elsewhere/one.txt", "www/link.txt");
    });
    scene
        .expect(200, "one")
        .change(|tree| {
            tree.write("elsewhere/one.txt", "one, changed");
        })
        .expect(200, "one, changed")
        .change(|tree| {
            tree.symlink("../elsewhere/two.txt", "www/new")
                .rename("www/new", "www/link.txt");
        })
        .expect(200, "two");
}

#[test]
fn a_chain_of_symlinks_whose_middle_is_switched() {
    let mut scene = Scene::new("", "/a/file.txt", |tree| {
        tree.write("one/file.txt", "one")
            .write("two/file.txt", "two")
            .directory("www")
            .directory("links")
            .symlink("../one", "links/middle")
            .symlink("../links/middle", "www/a");
    });
    scene
        .expect(200, "one")
        .change(|tree| {
            tree.symlink("../two", "links/new")
                .rename("links/new", "links/middle");
        })
        .expect(200, "two");
}

#[test]
fn an_index_file_that_comes_and_goes() {
    let mut scene = Scene::new(
        "index-file.names = (\"first.html\", \"index.html\")",
        "/",
        |tree| {
            tree.write("www/index.html", "index");
        },
    );
    scene
        .expect(200, "index")
        .change(|tree| {
            tree.write("www/first.html", "first");
        })
        .expect(200, "first")
        .change(|tree| {
            tree.remove("www/first.html");
        })
        .expect(200, "index");
}

#[test]
fn a_file_that_becomes_a_directory() {
    let mut scene = Scene::new("", "/thing", |tree| {
        tree.write("www/thing", "a file");
    });
    scene
        .expect(200, "a file")
        .change(|tree| {
            tree.remove("www/thing")
                .write("www/thing/index.html", "a directory");
        })
        .expect_status(301)
        .change(|tree| {
            tree.rename("www/thing", "www/away")
                .write("www/thing", "a file again");
        })
        .expect(200, "a file again");
}

#[test]
fn a_file_changed_through_another_link_is_seen_within_two_seconds() {
    let mut scene = Scene::new("", "/a.txt", |tree| {
        tree.write("www/a.txt", "old").directory("outside");
        std::fs::hard_link(tree.path("www/a.txt"), tree.path("outside/b.txt")).expect("a link");
    });
    scene.change(|tree| {
        tree.write("outside/b.txt", "new content");
    });
    std::thread::sleep(Duration::from_millis(2100));
    scene.expect(200, "new content");
}

#[test]
fn the_simple_engine_sees_changes_within_two_seconds() {
    let mut scene = Scene::new("server.stat-cache-engine = \"simple\"", "/a.txt", |tree| {
        tree.write("www/a.txt", "old");
    });
    scene.change(|tree| {
        tree.write("www/a.txt", "new");
    });
    std::thread::sleep(Duration::from_millis(2100));
    scene.expect(200, "new");
}

#[test]
fn without_a_cache_changes_are_seen_at_once() {
    let mut scene = Scene::new("server.stat-cache-engine = \"disable\"", "/a.txt", |tree| {
        tree.write("www/a.txt", "old");
    });
    for round in 0..10 {
        scene.server.tree().replace("www/a.txt", format!("{round}"));
        scene.expect(200, &format!("{round}"));
    }
}

#[test]
fn a_file_that_grows_while_it_is_asked_for() {
    let server = Server::build().file("www/log.txt", "").start();
    let mut client = server.client();
    let mut content = String::new();
    for line in 0..300 {
        content.push_str(&format!("line {line}\n"));
        server.tree().write("www/log.txt", &content);
        let response = client.get("/log.txt");
        let text = response.text();
        assert_eq!(response.status, 200);
        assert!(
            content.starts_with(&text),
            "what was never in the file: {text:?}"
        );
    }
}

#[test]
fn what_is_sent_belongs_to_one_version_of_the_file() {
    let server = Server::build()
        .file("www/a.txt", "a".repeat(20_000))
        .config("server.max-keep-alive-requests = 65535")
        .start();
    let done = AtomicBool::new(false);
    let mixtures = std::thread::scope(|scope| {
        scope.spawn(|| {
            for letter in ["b", "c", "d"].iter().cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                server.tree().replace("www/a.txt", letter.repeat(20_000));
            }
        });
        let _guard = SetOnDrop(&done);
        let mut client = server.client();
        let bodies = (0..2000).map(|_| client.get("/a.txt").body);
        let is_mixed = |body: &Vec<u8>| {
            body.len() != 20_000 || body.iter().any(|byte| Some(byte) != body.first())
        };
        bodies.filter(is_mixed).count()
    });
    assert_eq!(mixtures, 0);
}

/// Tells the other thread to end, even if this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
