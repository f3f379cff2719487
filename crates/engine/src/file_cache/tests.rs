//! How the cache notices changes of the file system.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::system_calls::since_mark;

const DESCRIPTORS_MAX: usize = 100;

/// The network backend lets threads read contents.
const READS: Asker = Asker {
    client: 0,
    wants_first: true,
};

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let path = std::env::temp_dir().join(format!("petrel-cache-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("temporary directory");
        Tree(path.canonicalize().expect("it was just made"))
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.0.join(name), content).expect("write");
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cache() -> FileCache {
    FileCache::new(
        StatCache::Inotify,
        Arc::new(Contents::new(DESCRIPTORS_MAX, Arc::default())),
    )
}

fn look(cache: &FileCache, path: &Path) -> Rc<FileEntry> {
    look_at(cache, path.as_os_str().as_bytes(), Symlinks::Follow, 1)
}

fn look_at(cache: &FileCache, path: &[u8], symlinks: Symlinks, now_s: u32) -> Rc<FileEntry> {
    match cache.lookup(path, symlinks, now_s, READS, || None) {
        LookResult::Here(entry) => entry,
        LookResult::Cold(waiting) => Rc::clone(&wait(cache, waiting)[0].entry),
    }
}

/// Runs a disk job for `path`, even if the kernel has everything in memory.
fn look_on_disk(cache: &FileCache, path: &Path, next: Option<NextNames>) -> Vec<FoundFile> {
    let path = path.as_os_str().as_bytes();
    wait(
        cache,
        cache.begin_job(path, Symlinks::Follow, READS, || next),
    )
}

fn wait(cache: &FileCache, mut waiting: DiskWait) -> Vec<FoundFile> {
    for _ in 0..60_000 {
        let mut context = Context::from_waker(std::task::Waker::noop());
        if let Poll::Ready(found) = cache.poll_cold(&mut waiting, 1, &mut context) {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the job has not ended in a minute");
}

fn after_events(cache: &FileCache) {
    std::thread::sleep(Duration::from_millis(2));
    // Other tests cause events in the temporary directory, too.
    while cache.process_events() {}
}

#[test]
fn a_warm_lookup_is_the_same_entry() {
    let (tree, cache) = (Tree::new("warm"), cache());
    tree.write("a", "hello");
    let first = look(&cache, &tree.0.join("a"));
    assert_eq!(first.content(), Some(&b"hello"[..]));
    assert!(Rc::ptr_eq(&first, &look(&cache, &tree.0.join("a"))));
}

#[test]
fn a_changed_file_is_seen() {
    let (tree, cache) = (Tree::new("changed"), cache());
    tree.write("a", "old");
    look(&cache, &tree.0.join("a"));
    tree.write("a", "new!");
    after_events(&cache);
    assert_eq!(
        look(&cache, &tree.0.join("a")).content(),
        Some(&b"new!"[..])
    );
}

#[test]
fn a_replaced_file_is_seen() {
    let (tree, cache) = (Tree::new("replaced"), cache());
    tree.write("a", "old");
    look(&cache, &tree.0.join("a"));
    tree.write("b", "new");
    std::fs::rename(tree.0.join("b"), tree.0.join("a")).expect("rename");
    after_events(&cache);
    assert_eq!(look(&cache, &tree.0.join("a")).content(), Some(&b"new"[..]));
}

#[test]
fn a_missing_file_that_appears_is_seen() {
    let (tree, cache) = (Tree::new("appears"), cache());
    let path = tree.0.join("x/y/z");
    assert_eq!(look(&cache, &path).kind(), FileKind::Missing);
    let miss = look(&cache, &path);
    assert!(
        Rc::ptr_eq(&miss, &look(&cache, &path)),
        "negatives are cached"
    );
    std::fs::create_dir_all(tree.0.join("x/y")).expect("mkdir");
    after_events(&cache);
    assert_eq!(look(&cache, &path).kind(), FileKind::Missing);
    tree.write("x/y/z", "here");
    after_events(&cache);
    assert_eq!(look(&cache, &path).content(), Some(&b"here"[..]));
}

#[test]
fn a_forgotten_path_is_looked_up_again() {
    let (tree, cache) = (Tree::new("forget"), cache());
    let path = tree.0.join("a");
    assert_eq!(look(&cache, &path).kind(), FileKind::Missing);
    tree.write("a", "here");
    assert_eq!(look(&cache, &path).kind(), FileKind::Missing);
    cache.forget(path.as_os_str().as_bytes());
    assert_eq!(look(&cache, &path).content(), Some(&b"here"[..]));
}

#[test]
fn a_deleted_file_is_seen() {
    let (tree, cache) = (Tree::new("deleted"), cache());
    tree.write("a", "x");
    look(&cache, &tree.0.join("a"));
    std::fs::remove_file(tree.0.join("a")).expect("remove");
    after_events(&cache);
    assert_eq!(look(&cache, &tree.0.join("a")).kind(), FileKind::Missing);
}

#[test]
fn a_switched_symlink_in_the_path_is_seen() {
    let (tree, cache) = (Tree::new("switch"), cache());
    for release in ["release-7", "release-8"] {
        std::fs::create_dir(tree.0.join(release)).expect("mkdir");
        tree.write(&format!("{release}/a"), release);
    }
    let current = tree.0.join("current");
    std::os::unix::fs::symlink("release-7", &current).expect("symlink");
    assert_eq!(
        look(&cache, &current.join("a")).content(),
        Some(&b"release-7"[..])
    );
    std::os::unix::fs::symlink("release-8", tree.0.join("next")).expect("symlink");
    std::fs::rename(tree.0.join("next"), &current).expect("rename");
    after_events(&cache);
    assert_eq!(
        look(&cache, &current.join("a")).content(),
        Some(&b"release-8"[..])
    );
}

#[test]
fn a_switched_symlink_behind_a_symlink_is_seen() {
    let (tree, cache) = (Tree::new("chain"), cache());
    tree.write("one", "1");
    tree.write("two", "2");
    std::os::unix::fs::symlink("one", tree.0.join("middle")).expect("symlink");
    std::os::unix::fs::symlink("middle", tree.0.join("front")).expect("symlink");
    assert_eq!(
        look(&cache, &tree.0.join("front")).content(),
        Some(&b"1"[..])
    );
    std::os::unix::fs::symlink("two", tree.0.join("new")).expect("symlink");
    std::fs::rename(tree.0.join("new"), tree.0.join("middle")).expect("rename");
    after_events(&cache);
    assert_eq!(
        look(&cache, &tree.0.join("front")).content(),
        Some(&b"2"[..])
    );
    tree.write("two", "22");
    after_events(&cache);
    assert_eq!(
        look(&cache, &tree.0.join("front")).content(),
        Some(&b"22"[..])
    );
}

#[test]
fn a_renamed_directory_is_seen() {
    let (tree, cache) = (Tree::new("renamed"), cache());
    std::fs::create_dir_all(tree.0.join("d/e")).expect("mkdir");
    tree.write("d/e/a", "x");
    look(&cache, &tree.0.join("d/e/a"));
    std::fs::rename(tree.0.join("d"), tree.0.join("gone")).expect("rename");
    after_events(&cache);
    assert_eq!(
        look(&cache, &tree.0.join("d/e/a")).kind(),
        FileKind::Missing
    );
}

#[test]
fn symlinks_can_be_refused() {
    let (tree, cache) = (Tree::new("refuse"), cache());
    tree.write("a", "x");
    std::os::unix::fs::symlink("a", tree.0.join("link")).expect("symlink");
    let path = tree.0.join("link");
    let path = path.as_os_str().as_bytes();
    assert_eq!(
        look_at(&cache, path, Symlinks::Refuse, 1).kind(),
        FileKind::Denied
    );
    assert_eq!(
        look_at(&cache, path, Symlinks::Follow, 1).kind(),
        FileKind::Regular
    );
    assert_eq!(
        look_at(&cache, path, Symlinks::Refuse, 1).kind(),
        FileKind::Denied
    );
}

#[test]
fn a_file_in_the_path_is_not_a_directory() {
    let (tree, cache) = (Tree::new("notdir"), cache());
    tree.write("a", "x");
    assert_eq!(
        look(&cache, &tree.0.join("a/b")).kind(),
        FileKind::NotADirectory
    );
}

#[test]
fn a_write_through_another_hard_link_is_seen_within_the_recheck_time() {
    let (tree, cache) = (Tree::new("hardlink"), cache());
    std::fs::create_dir(tree.0.join("in")).expect("mkdir");
    std::fs::create_dir(tree.0.join("out")).expect("mkdir");
    tree.write("in/a", "old");
    std::fs::hard_link(tree.0.join("in/a"), tree.0.join("out/a")).expect("link");
    look(&cache, &tree.0.join("in/a"));
    after_events(&cache);
    std::thread::sleep(Duration::from_millis(20));
    tree.write("out/a", "other");
    let path = tree.0.join("in/a");
    let later = look_at(&cache, path.as_os_str().as_bytes(), Symlinks::Follow, 5);
    assert_eq!(later.content(), Some(&b"other"[..]));
}

#[test]
fn one_worker_rechecks_a_file_for_all() {
    let tree = Tree::new("rechecks");
    tree.write("a", "x");
    let path = tree.0.join("a");
    let bytes = path.as_os_str().as_bytes();
    // With one descriptor files in memory have none, so a recheck looks up the path.
    for descriptors_max in [1, DESCRIPTORS_MAX] {
        let contents = Arc::new(Contents::new(descriptors_max, Arc::default()));
        let worker = || FileCache::new(StatCache::Inotify, Arc::clone(&contents));
        let calls = |cache, now_s| {
            since_mark();
            look_at(cache, bytes, Symlinks::Follow, now_s);
            since_mark()
        };
        let (one, other) = (worker(), worker());
        look(&one, &path);
        look(&other, &path);
        for (now_s, first, second) in [(50, &one, &other), (100, &other, &one)] {
            assert_ne!(calls(first, now_s), 0);
            assert_eq!(calls(second, now_s), 0);
        }
    }
}

#[test]
fn big_files_are_not_held_in_memory() {
    let (tree, cache) = (Tree::new("big"), cache());
    tree.write(
        "a",
        &"x".repeat(limits::FILE_IN_MEMORY_BYTES_MAX as usize + 1),
    );
    let entry = look(&cache, &tree.0.join("a"));
    assert_eq!(entry.content(), None);
    let mut end = [0; 8];
    assert_eq!(
        entry
            .read_at(&mut end, limits::FILE_IN_MEMORY_BYTES_MAX)
            .expect("read"),
        1
    );
}

#[test]
fn a_full_cache_makes_room_and_keeps_what_is_used() {
    let (tree, cache) = (Tree::new("full"), cache());
    tree.write("hot", "x");
    for round in 0..limits::FILE_CACHE_ENTRIES_MAX + 10 {
        let path = format!("/petrel-no-such-directory/{round}");
        look_at(&cache, path.as_bytes(), Symlinks::Follow, 1);
        if round % 1000 == 0 {
            look(&cache, &tree.0.join("hot"));
        }
    }
    assert!(cache.len() < limits::FILE_CACHE_ENTRIES_MAX);
    let key = tree.0.join("hot");
    assert!(
        cache
            .following
            .borrow()
            .get(key.as_os_str().as_bytes())
            .is_some()
    );
}

#[test]
fn files_too_big_for_memory_do_not_use_up_the_descriptors() {
    let (tree, cache) = (Tree::new("descriptors"), cache());
    let size = limits::FILE_IN_MEMORY_BYTES_MAX + 1;
    for number in 0..3 * DESCRIPTORS_MAX {
        let path = tree.0.join(number.to_string());
        let file = std::fs::File::create(&path).expect("create");
        file.set_len(size).expect("a hole");
        assert!(look(&cache, &path).descriptor().is_some());
        assert!(cache.usage.descriptors.get() <= DESCRIPTORS_MAX);
    }
    cache.flush();
    assert_eq!(cache.usage.descriptors.get(), 0);
}

#[test]
fn small_files_leave_descriptors_to_big_ones() {
    let (tree, cache) = (Tree::new("small"), cache());
    for number in 0..DESCRIPTORS_MAX {
        tree.write(&number.to_string(), "x");
        look(&cache, &tree.0.join(number.to_string()));
    }
    assert_eq!(cache.len(), DESCRIPTORS_MAX);
    assert_eq!(cache.usage.descriptors.get(), DESCRIPTORS_MAX / 2);
}

#[test]
fn long_names_that_do_not_exist_are_not_remembered_without_end() {
    let cache = cache();
    let long = "y".repeat(8000);
    for round in 0..10_000 {
        let path = format!("/{long}{round}");
        look_at(&cache, path.as_bytes(), Symlinks::Follow, 1);
        assert!(cache.usage.bytes.get() <= limits::FILE_CACHE_BYTES_MAX + 2 * path.len());
    }
    assert!(cache.len() < 10_000);
    cache.flush();
    assert_eq!(cache.usage.bytes.get(), 0);
}

#[test]
fn a_job_finds_what_a_look_finds() {
    let (tree, cache) = (Tree::new("job"), cache());
    tree.write("small", "hello");
    tree.write("large", &"x".repeat(200_000));
    tree.write("empty", "");
    std::fs::create_dir(tree.0.join("directory")).expect("mkdir");
    std::os::unix::fs::symlink("small", tree.0.join("link")).expect("symlink");
    for name in [
        "small",
        "large",
        "empty",
        "directory",
        "link",
        "none",
        "small/x",
        "none/x",
    ] {
        let path = tree.0.join(name);
        let found = look_on_disk(&cache, &path, None);
        let other = FileCache::new(
            StatCache::Inotify,
            Arc::new(Contents::new(DESCRIPTORS_MAX, Arc::default())),
        );
        let entry = look(&other, &path);
        assert_eq!(found[0].entry.kind(), entry.kind(), "{name}");
        assert_eq!(found[0].entry.stat(), entry.stat(), "{name}");
        assert_eq!(found[0].entry.content(), entry.content(), "{name}");
        // The entry is in the cache now.
        assert!(Rc::ptr_eq(&found[0].entry, &look(&cache, &path)), "{name}");
    }
    let large = look_on_disk(&cache, &tree.0.join("large"), None);
    assert_eq!(large[0].first.as_ref().map(Bytes::len), Some(128 * 1024));
}

#[test]
fn a_job_reads_large_files_only_for_who_wants_it() {
    let (tree, cache) = (Tree::new("job-first"), cache());
    tree.write("small", "hello");
    tree.write("large", &"x".repeat(100_000));
    tree.write("large.gz", &"y".repeat(90_000));
    for wants_first in [false, true] {
        let asker = Asker {
            client: 0,
            wants_first,
        };
        let look = |name: &str, next| {
            let path = tree.0.join(name).into_os_string().into_vec();
            let waiting = cache.begin_job(&path, Symlinks::Follow, asker, || next);
            wait(&cache, waiting)
        };
        let lengths = |found: &[FoundFile]| -> Vec<_> {
            let all = found.iter();
            all.map(|found| found.first.as_ref().map_or(0, Bytes::len))
                .collect()
        };
        let sibling = NextNames {
            paths: vec![tree.0.join("large.gz").into_os_string().into_vec()],
            role: Role::Siblings,
        };
        let read = |length: usize| length * usize::from(wants_first);
        assert_eq!(lengths(&look("large", None)), [read(100_000)]);
        let both = look("large", Some(sibling));
        assert_eq!(lengths(&both), [0, read(90_000)]);
        assert!(both.iter().all(|found| found.entry.descriptor().is_some()));
        // Workers keep these in memory, so the network backend does not read them.
        let small = look("small", None);
        assert_eq!(small[0].entry.content(), Some(&b"hello"[..]));
    }
}

#[test]
fn what_a_job_found_is_watched() {
    let (tree, cache) = (Tree::new("job-watched"), cache());
    tree.write("a", "old");
    look_on_disk(&cache, &tree.0.join("a"), None);
    look_on_disk(&cache, &tree.0.join("b"), None);
    tree.write("a", "new!");
    tree.write("b", "is there");
    after_events(&cache);
    assert_eq!(
        look(&cache, &tree.0.join("a")).content(),
        Some(&b"new!"[..])
    );
    assert_eq!(look(&cache, &tree.0.join("b")).kind(), FileKind::Regular);
}

#[test]
fn one_job_looks_at_all_names_that_come_next() {
    let (tree, cache) = (Tree::new("job-next"), cache());
    tree.write("index.html", "index");
    tree.write("file", "plain");
    tree.write("file.gz", "gz");
    let next = |names: &[&str], role| {
        let paths = names
            .iter()
            .map(|name| tree.0.join(name).into_os_string().into_vec());
        Some(NextNames {
            paths: paths.collect(),
            role,
        })
    };
    let names = ["index.php", "index.html", "index.htm"];
    let found = look_on_disk(&cache, &tree.0, next(&names, Role::Indexes));
    let kinds: Vec<_> = found.iter().map(|found| found.entry.kind()).collect();
    // It stops at the first one that exists.
    assert_eq!(
        kinds,
        [FileKind::Directory, FileKind::Missing, FileKind::Regular]
    );
    let siblings = ["file.br", "file.gz"];
    let found = look_on_disk(
        &cache,
        &tree.0.join("file"),
        next(&siblings, Role::Siblings),
    );
    let kinds: Vec<_> = found.iter().map(|found| found.entry.kind()).collect();
    assert_eq!(
        kinds,
        [FileKind::Regular, FileKind::Missing, FileKind::Regular]
    );
    // A file has no index files.
    let found = look_on_disk(&cache, &tree.0.join("file"), next(&names, Role::Indexes));
    assert_eq!(found.len(), 1);
}

#[test]
fn misses_of_one_path_share_a_job() {
    let (tree, cache) = (Tree::new("job-shared"), cache());
    tree.write("a", "hello");
    let path = tree.0.join("a");
    let path = path.as_os_str().as_bytes();
    let begin = || cache.begin_job(path, Symlinks::Follow, READS, || None);
    // If a thread has begun the first job already, it is not shared.
    let are_shared = |_| {
        let (first, second) = (begin(), begin());
        let found = (wait(&cache, first), wait(&cache, second));
        Rc::ptr_eq(&found.0[0].entry, &found.1[0].entry)
    };
    assert!((0..1000).any(are_shared));
}

#[test]
fn a_late_job_does_not_replace_what_was_found_since() {
    let tree = Tree::new("late");
    tree.write("here", "x");
    let path = tree.0.join("file").into_os_string().into_vec();
    let cache = cache();
    let missing = || cold::LookedUpFile {
        path: path.clone().into(),
        place: MountedPlace::default(),
        found: Err(NotOpened::Failed(Errno::NOENT)),
        first: None,
        times: LookTimes::default(),
        is_settled: true,
        listed: None,
    };
    // The job looked before the file was created and is told afterwards.
    let late = missing();
    tree.write("file", "new");
    assert_eq!(
        look_at(&cache, &path, Symlinks::Follow, 1).kind(),
        FileKind::Regular
    );
    let told = cache.settle(late, Symlinks::Follow, 1);
    assert_eq!(told.entry.kind(), FileKind::Missing);
    let entry = cache.table(Symlinks::Follow).borrow().get(&path).cloned();
    assert_eq!(entry.map(|entry| entry.kind()), Some(FileKind::Regular));
}

/// A cache that has looked for names that are not in `directory`, so that it has listed it.
fn cache_with_list(directory: &Path) -> FileCache {
    let cache = cache();
    for name in ["first-missing", "second-missing"] {
        let found = look_on_disk(&cache, &directory.join(name), None);
        assert_eq!(found[0].entry.kind(), FileKind::Missing);
    }
    cache
}

/// What is at `path`, if no disk thread has to look.
fn at_once(cache: &FileCache, path: &Path, symlinks: Symlinks) -> Option<FileKind> {
    match cache.lookup(path.as_os_str().as_bytes(), symlinks, 1, READS, || None) {
        LookResult::Here(entry) => Some(entry.kind()),
        LookResult::Cold(_) => None,
    }
}

#[test]
fn a_new_name_that_is_missing_needs_no_look_up() {
    let tree = Tree::new("new-names");
    tree.write("a.txt", "x");
    let cache = cache_with_list(&tree.0);
    for number in 0..100 {
        let path = tree.0.join(format!("new-{number}.html"));
        let kind = at_once(&cache, &path, Symlinks::Follow);
        assert_eq!(kind, Some(FileKind::Missing), "{number}");
    }
    let behind = tree.0.join("none/of/these");
    assert_eq!(
        at_once(&cache, &behind, Symlinks::Follow),
        Some(FileKind::Missing)
    );
    let behind = tree.0.join("a.txt/x");
    assert_eq!(look(&cache, &behind).kind(), FileKind::NotADirectory);
    assert_eq!(
        look(&cache, &tree.0.join("a.txt")).kind(),
        FileKind::Regular
    );
    // An event that the worker has not read yet counts, too.
    tree.write("new-100.html", "x");
    assert_eq!(
        look(&cache, &tree.0.join("new-100.html")).kind(),
        FileKind::Regular
    );
    std::fs::rename(tree.0.join("a.txt"), tree.0.join("new-101.html")).expect("it is ours");
    assert_eq!(
        look(&cache, &tree.0.join("new-101.html")).kind(),
        FileKind::Regular
    );
    assert_eq!(
        look(&cache, &tree.0.join("a.txt")).kind(),
        FileKind::Missing
    );
    // A name that was missing, and appears.
    tree.write("new-1.html", "x");
    after_events(&cache);
    assert_eq!(
        look(&cache, &tree.0.join("new-1.html")).kind(),
        FileKind::Regular
    );
}

#[test]
fn a_list_says_nothing_of_names_behind_symlinks_where_those_are_refused() {
    let tree = Tree::new("new-names-refused");
    std::fs::create_dir(tree.0.join("d")).expect("it is ours");
    tree.write("d/a.txt", "x");
    std::os::unix::fs::symlink("d", tree.0.join("link")).expect("it is ours");
    let cache = cache_with_list(&tree.0.join("link"));
    let path = tree.0.join("link/new");
    assert_eq!(
        at_once(&cache, &path, Symlinks::Follow),
        Some(FileKind::Missing)
    );
    let refused = look_at(&cache, path.as_os_str().as_bytes(), Symlinks::Refuse, 1);
    assert_eq!(refused.kind(), FileKind::Denied);
}

/// The list is made of what a disk thread saw before, and the worker has read the event since.
#[test]
fn a_name_that_appears_while_the_directory_is_listed_is_in_the_list() {
    let tree = Tree::new("new-names-meanwhile");
    tree.write("a.txt", "x");
    let cache = cache();
    look_on_disk(&cache, &tree.0.join("missing"), None);
    let path = tree.0.join("other");
    let order = cache.watcher.begin_listing(path.as_os_str().as_bytes());
    let listed = order.expect("a name was missing").carry_out();
    tree.write("meanwhile", "x");
    after_events(&cache);
    cache.watcher.end_listing(listed);
    assert_eq!(
        at_once(&cache, &path, Symlinks::Follow),
        Some(FileKind::Missing)
    );
    assert_eq!(
        look(&cache, &tree.0.join("meanwhile")).kind(),
        FileKind::Regular
    );
}

/// Another file system may have these names.
#[test]
fn a_change_of_the_mounts_ends_what_lists_say() {
    let tree = Tree::new("new-names-mounts");
    tree.write("a.txt", "x");
    let cache = cache_with_list(&tree.0);
    let path = tree.0.join("new");
    cache.mounts.set(u64::MAX);
    assert_eq!(at_once(&cache, &path, Symlinks::Follow), None);
    assert_ne!(cache.mounts.get(), u64::MAX);
}
