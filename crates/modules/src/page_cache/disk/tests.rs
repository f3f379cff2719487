//! Tests of writing, finding and removing files.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::mpsc;
use std::time::Duration;

use petrel_engine::limits::DEVICE_BYTES_MAX;
use petrel_engine::log::{LogRegistry, LogTarget};

use super::super::entry::tests::page;
use super::super::key::testing::key_of;
use super::*;
use crate::testing::Tree;

async fn open(tree: &Tree, bytes_max: u64) -> Arc<Disk> {
    let disk =
        Disk::open(&tree.path("cache"), bytes_max, LogHandle::default()).expect("the tree is ours");
    disk.load(Arc::default()).await.expect("it can be read");
    disk
}

async fn write(disk: &Arc<Disk>, name: &str, body: &str) -> BlobName {
    let page = page(&key_of(name), body, 0, 60);
    let name = blob::name(&page.key, &page.vary);
    let job = disk.write(move || vec![(name, blob::encode_page(&page, 1))], || false);
    assert!(job.expect("nothing waits").await.expect("it is done"));
    name
}

async fn body(disk: &Arc<Disk>, name: BlobName) -> Option<Bytes> {
    match disk.read(name, 1 << 20, 0).await.expect("it is done") {
        Some(Blob::Page { page, .. }) => Some(page.body),
        _ => None,
    }
}

#[tokio::test(flavor = "local")]
async fn what_was_written_is_there_after_a_restart() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let name = write(&disk, "a", "one").await;
    assert_eq!(body(&disk, name).await.as_deref(), Some(&b"one"[..]));
    write(&disk, "a", "two").await;
    drop(disk);
    let again =
        Disk::open(&tree.path("cache"), 1 << 20, LogHandle::default()).expect("it is there");
    assert!(!again.has(&name), "nothing is known yet");
    again.load(Arc::default()).await.expect("it can be read");
    assert!(again.has(&name));
    assert_eq!(body(&again, name).await.as_deref(), Some(&b"two"[..]));
    assert_eq!(again.sizes().0, 1);
}

#[tokio::test(flavor = "local")]
async fn files_are_for_this_user_alone_and_symlinks_lead_nowhere() {
    let tree = Tree::new(&[("secret", "x")]);
    let disk = open(&tree, 1 << 20).await;
    let name = write(&disk, "a", "one").await;
    let directory = tree.path(&format!("cache/{:02x}", name[0]));
    let file = format!("{directory}/{}", file_name(&name));
    let mode = |path: &str| std::fs::metadata(path).expect("it is there").mode() & 0o777;
    let modes = [&tree.path("cache"), &directory, &file].map(|path| mode(path));
    assert_eq!(modes, [0o700, 0o700, 0o600]);
    std::fs::rename(&file, tree.path("moved")).expect("the tree is ours");
    symlink(tree.path("moved"), &file).expect("the tree is ours");
    assert_eq!(body(&disk, name).await, None);
    let other = write(&disk, "b", "one").await;
    let directory = tree.path(&format!("cache/{:02x}", other[0]));
    std::fs::rename(&directory, tree.path("elsewhere")).expect("the tree is ours");
    symlink(tree.path("elsewhere"), &directory).expect("the tree is ours");
    assert_eq!(body(&disk, other).await, None);
}

#[tokio::test(flavor = "local")]
async fn what_is_damaged_is_removed() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let name = write(&disk, "a", "one").await;
    let file = tree.path(&format!("cache/{:02x}/{}", name[0], file_name(&name)));
    let mut bytes = std::fs::read(&file).expect("it is there");
    *bytes.last_mut().expect("it is not empty") ^= 1;
    std::fs::write(&file, bytes).expect("the tree is ours");
    assert_eq!(body(&disk, name).await, None);
    assert!(!disk.has(&name) && !std::path::Path::new(&file).exists());
    assert_eq!(disk.sizes(), (0, 0, 1));
}

#[tokio::test(flavor = "local")]
async fn who_asks_last_has_a_turn_after_one_read_of_a_crowd() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let name = write(&disk, "a", "one").await;
    // Each job is as much as the file system may do at a time.
    let large = disk.origin.with_bytes(DEVICE_BYTES_MAX);
    let (mut gates, mut jobs) = (Vec::new(), Vec::new());
    let (begun, has_begun) = mpsc::channel();
    for _ in 0..3 {
        let (gate, is_open) = mpsc::channel::<()>();
        gates.push(gate);
        let begun = begun.clone();
        jobs.push(blocking::run_for(Class::Read, large, move || {
            let _ = begun.send(());
            let _ = is_open.recv();
        }));
    }
    has_begun.recv().expect("the first one runs");
    let read = disk.read(name, 1 << 20, 7);
    gates.drain(..2);
    let in_time = tokio::time::timeout(Duration::from_secs(60), read).await;
    let read = in_time.expect("it waits for all of the crowd");
    assert!(read.expect("it is done").is_some());
    drop(gates);
    for job in jobs {
        job.await.expect("it is done");
    }
}

#[tokio::test(flavor = "local")]
async fn what_cannot_be_read_now_is_kept() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 4 << 20).await;
    let long = "x".repeat(2 * BLOB_HEAD_BYTES_MAX);
    let name = write(&disk, "a", &long).await;
    let read = disk.read(name, 1000, 0).await;
    assert!(read.expect("it is done").is_none());
    assert!(body(&disk, name).await.is_some());
    for (error, is_kept) in [
        (rustix::io::Errno::MFILE, true),
        (rustix::io::Errno::NOMEM, true),
        (rustix::io::Errno::IO, true),
        (rustix::io::Errno::NOENT, false),
    ] {
        assert_eq!(is_passing(&error.into()), is_kept, "{error}");
    }
}

#[tokio::test(flavor = "local")]
async fn the_disk_is_bounded_and_what_is_used_stays() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 20_000).await;
    let hot = write(&disk, "hot", "x").await;
    for number in 0..100 {
        assert!(body(&disk, hot).await.is_some(), "{number}");
        write(&disk, &number.to_string(), &"x".repeat(1000)).await;
        assert!(disk.sizes().1 <= 20_000);
    }
    let on_disk: u64 = std::fs::read_dir(tree.path("cache"))
        .expect("it is there")
        .flat_map(|entry| std::fs::read_dir(entry.expect("it is there").path()))
        .flatten()
        .map(|entry| {
            entry
                .and_then(|entry| entry.metadata())
                .map_or(0, |it| it.len())
        })
        .sum();
    assert_eq!(on_disk, disk.sizes().1);
}

#[tokio::test(flavor = "local")]
async fn what_is_purged_before_it_is_written_does_not_stay() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let page = page(&key_of("a"), "one", 0, 60);
    let name = blob::name(&page.key, &page.vary);
    for purged_at in [0, 1] {
        let (page, asked) = (page.clone(), AtomicUsize::new(0));
        let is_purged = move || asked.fetch_add(1, Relaxed) >= purged_at;
        let make = move || vec![(name, blob::encode_page(&page, 1))];
        let job = disk.write(make, is_purged).expect("nothing waits");
        assert!(!job.await.expect("it is done"));
        assert_eq!((disk.has(&name), body(&disk, name).await), (false, None));
    }
}

#[tokio::test(flavor = "local")]
async fn what_is_purged_before_it_is_found_is_not_found() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let gone = write(&disk, "a", "one").await;
    let stays = write(&disk, "b", "two").await;
    drop(disk);
    let again =
        Disk::open(&tree.path("cache"), 1 << 20, LogHandle::default()).expect("it is there");
    let base = blob::base_name(&key_of("a"));
    assert!(again.purge(base).1.is_none(), "nothing is known of it yet");
    // A page that is written after the purge counts.
    let newer = {
        again.purge(blob::base_name(&key_of("c")));
        write(&again, "c", "three").await
    };
    again.load(Arc::default()).await.expect("it can be read");
    let there = [gone, stays, newer].map(|name| again.has(&name));
    assert_eq!(there, [false, true, true]);
    let file = tree.path(&format!("cache/{:02x}/{}", gone[0], file_name(&gone)));
    assert!(!std::path::Path::new(&file).exists());
    // A purge is only remembered while it matters.
    let (_, job) = again.purge(blob::base_name(&key_of("b")));
    job.expect("there is a file").await.expect("it is done");
    let back = write(&again, "b", "four").await;
    assert!(again.has(&back) && !again.index().remembers_purges());
}

#[tokio::test(flavor = "local")]
async fn what_is_removed_before_it_is_found_is_not_found() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let old = write(&disk, "a", "one").await;
    drop(disk);
    let again =
        Disk::open(&tree.path("cache"), 1 << 20, LogHandle::default()).expect("it is there");
    assert!(again.remove_elsewhere(old).is_none(), "nothing is known");
    let new = write(&again, "b", "two").await;
    let job = again.remove_elsewhere(new).expect("it is known");
    assert_eq!(again.sizes().0, 0);
    job.await.expect("it is done");
    again.load(Arc::default()).await.expect("it can be read");
    assert_eq!(again.sizes().0, 0);
    for name in [old, new] {
        let file = tree.path(&format!("cache/{:02x}/{}", name[0], file_name(&name)));
        assert!(!std::path::Path::new(&file).exists());
    }
}

#[tokio::test(flavor = "local")]
async fn what_came_later_stays() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let old = page(&key_of("a"), "old", 0, 60);
    let (begun, has_begun) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let make = move || {
        begun.send(()).expect("the test waits");
        goes_on.recv().expect("the test goes on");
        vec![(blob::name(&old.key, &old.vary), blob::encode_page(&old, 1))]
    };
    let late = disk.write(make, || false).expect("nothing waits");
    let in_time = has_begun.recv_timeout(Duration::from_secs(60));
    in_time.expect("it begins");
    let name = write(&disk, "a", "new").await;
    go_on.send(()).expect("it waits");
    assert!(!late.await.expect("it is done"), "it is too late");
    // As a thread does that has found the earlier file damaged or purged.
    disk.remove(name, FOUND + 1);
    disk.unlink(&[name]);
    assert_eq!(body(&disk, name).await.as_deref(), Some(&b"new"[..]));
    let directory = tree.path(&format!("cache/{:02x}", name[0]));
    let files = std::fs::read_dir(directory).expect("it is there");
    assert_eq!(files.count(), 1);
}

#[tokio::test(flavor = "local")]
async fn what_is_removed_while_it_is_found_is_no_error() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let name = write(&disk, "a", "one").await;
    let directory = disk.directory(&name).expect("it is there");
    disk.remove(name, FOUND + 1);
    let taken_in = disk.take_in(&directory, name);
    assert!(taken_in.is_ok(), "{taken_in:?}");
    assert_eq!(disk.sizes(), (0, 0, 0));
}

#[tokio::test(flavor = "local")]
async fn a_purge_removes_all_with_one_base() {
    let tree = Tree::new(&[]);
    let disk = open(&tree, 1 << 20).await;
    let (gone, stays) = (
        write(&disk, "a", "one").await,
        write(&disk, "b", "two").await,
    );
    let (count, job) = disk.purge(blob::base_name(&key_of("a")));
    assert_eq!(count, 1);
    assert!(!disk.has(&gone) && disk.has(&stays));
    job.expect("there is a file").await.expect("it is done");
    let file = tree.path(&format!("cache/{:02x}/{}", gone[0], file_name(&gone)));
    assert!(!std::path::Path::new(&file).exists());
}

#[tokio::test(flavor = "local")]
async fn tags_that_are_purged_before_the_note_is_read_are_added_to_it() {
    let tree = Tree::new(&[]);
    let path = tree.path("cache");
    for tag in ["a", "b"] {
        let disk = Disk::open(&path, 1 << 20, LogHandle::default()).expect("the tree is ours");
        let purges = Arc::new(TagPurges::default());
        purges.add(tag.as_bytes(), 100);
        let noted = disk.write_note(purges).expect("no other is due");
        noted.await.expect("it is done");
    }
    let (disk, purges) = (
        Disk::open(&path, 1 << 20, LogHandle::default()),
        Arc::default(),
    );
    let disk = disk.expect("it is there");
    let loaded = disk.load(Arc::clone(&purges)).await;
    loaded.expect("it can be read");
    for tag in ["a", "b"] {
        assert!(purges.concern(&[tag.as_bytes().into()], 100), "{tag}");
    }
    assert_eq!(disk.sizes().2, 0);
}

#[tokio::test(flavor = "local")]
async fn what_others_have_left_does_no_harm() {
    let tree = Tree::new(&[
        ("cache/00/.new-1999999999-3", "half"),
        ("cache/00/readme", "mine"),
        ("cache/zz/x", "mine"),
    ]);
    let mode = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(tree.path("cache"), mode).expect("the tree is ours");
    let disk = open(&tree, 1 << 20).await;
    assert_eq!(disk.sizes(), (0, 0, 0));
    let is_there = |path: &str| std::path::Path::new(&tree.path(path)).exists();
    assert!(!is_there("cache/00/.new-1999999999-3"));
    assert!(is_there("cache/00/readme") && is_there("cache/zz/x"));
    assert!(Disk::open(&tree.path("none/cache"), 1, LogHandle::default()).is_err());
}

#[tokio::test(flavor = "local")]
async fn the_log_says_what_fails() {
    let tree = Tree::new(&[]);
    let target = LogTarget::File(tree.path("log").into());
    let logs = LogRegistry::open([target.clone()]).expect("the tree is ours");
    let path = tree.path("cache");
    let disk = Disk::open(&path, 1 << 20, logs.get(&target)).expect("the tree is ours");
    disk.load(Arc::default()).await.expect("it can be read");
    std::fs::remove_dir_all(&path).expect("the tree is ours");
    let page = page(&key_of("a"), "one", 0, 60);
    let name = blob::name(&page.key, &page.vary);
    let job = disk.write(move || vec![(name, blob::encode_page(&page, 1))], || false);
    assert!(!job.expect("nothing waits").await.expect("it is done"));
    let log = std::fs::read_to_string(tree.path("log")).expect("it is open");
    let expected = format!(
        "(page-cache) a page cannot be written in page-cache.disk-path {path:?}: No such file"
    );
    assert!(log.contains(&expected), "{log}");
    assert_eq!(disk.sizes().2, 1);
}
