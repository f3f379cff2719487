//! The document root of every server: a few single files and a tree of small ones.
//!
//! Contents are computed from the name, so that a reply can be checked without reading the disk.

use super::{Age, Urls, Workload};
use std::path::Path;
use std::time::SystemTime;
use std::{fs, io};

/// A file in the document root.
#[derive(Debug)]
pub struct File {
    /// Path below the document root.
    pub name: &'static str,
    /// Its length.
    pub bytes: u64,
}

/// A tiny file.
pub static SMALL: File = File {
    name: "100.html",
    bytes: 100,
};
/// A page.
pub static PAGE: File = File {
    name: "4k.html",
    bytes: 4 << 10,
};
/// A picture.
pub static PICTURE: File = File {
    name: "100k.jpg",
    bytes: 100 << 10,
};
/// A large picture.
pub static PHOTOGRAPH: File = File {
    name: "1m.jpg",
    bytes: 1 << 20,
};
/// A download.
pub static DOWNLOAD: File = File {
    name: "10m.jpg",
    bytes: 10 << 20,
};

/// A script in the document root.
#[derive(Debug)]
pub struct Script {
    /// Path below the document root.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Its output.
    pub prints: fn() -> Vec<u8>,
}

/// The smallest script that really prints something.
pub static PRINT_123: Script = Script {
    name: "123.php",
    text: "<?php print \"123\"; ?>",
    prints: || b"123".to_vec(),
};
/// A page as applications make them, in several writes of PHP.
pub static PRINT_40K: Script = Script {
    name: "40k.php",
    text: "<?php for ($n = 0; $n < 40; $n++) print str_repeat('0123456789abcdef', 64); ?>",
    prints: || b"0123456789abcdef".repeat(64 * 40),
};
/// The smallest script, with a reply that caches may store.
pub static CACHED_123: Script = Script {
    name: "cached.php",
    text: "<?php header('Cache-Control: public, max-age=3600'); print \"123\"; ?>",
    prints: || b"123".to_vec(),
};
/// The smallest script, in Lua by FastCGI.
pub static LUA_123: Script = Script {
    name: "123.lua",
    text: "print(\"Content-Type: text/html\\r\\n\\r\\n123\")\n",
    prints: || b"123".to_vec(),
};
/// The directory, below the document root, of the page that mod_cml assembles.
pub const CML_DIRECTORY: &str = "cml";
/// The content of that page.
pub const CML_PRINTS: &str = "123";
/// The end of a script: everything was sent, and the worker is free after this.
macro_rules! tell_time {
    () => {
        "$times = getenv('PETREL_BENCH_TIMES');
if ($times !== false) {
    fastcgi_finish_request();
    $took = intdiv(hrtime(true) - $began, 1000);
    file_put_contents($times, \"$took\\n\", FILE_APPEND);
}
"
    };
}

/// A large response through PHP's output.
pub static INLINE: Script = Script {
    name: "inline.php",
    text: concat!(
        "<?php
$began = hrtime(true);
$block = str_repeat('0123456789abcdef', 512);
$blocks = $_GET['blocks'] ?? 64;
for ($n = 0; $n < $blocks; $n++) print $block;
",
        tell_time!()
    ),
    prints: large_answer,
};
/// The same through a file in memory, which the server shall send and remove.
pub static SEND_TEMPFILE: Script = Script {
    name: "send-tempfile.php",
    text: concat!(
        "<?php
$began = hrtime(true);
$block = str_repeat('0123456789abcdef', 512);
$blocks = $_GET['blocks'] ?? 64;
$name = tempnam('/dev/shm', 'petrel-bench-');
$file = fopen($name, 'w');
for ($n = 0; $n < $blocks; $n++) fwrite($file, $block);
fclose($file);
header(\"X-LIGHTTPD-send-tempfile: $name\");
",
        tell_time!()
    ),
    prints: large_answer,
};

/// The smallest script that takes some time.
pub static SLEEP_5_MS: Script = Script {
    name: "sleep.php",
    text: "<?php usleep(5000); print \"123\"; ?>",
    prints: || b"123".to_vec(),
};

const CML_SCRIPT: &str = "output_contenttype = \"text/html\"
output_include = { \"part.html\" }
return CACHE_HIT
";

fn large_answer() -> Vec<u8> {
    b"0123456789abcdef".repeat(512 * 64)
}

/// Number of files in the tree.
pub const TREE_FILES: u64 = 10_000;
/// The length of each of them.
pub const TREE_FILE_BYTES: u64 = 4 << 10;

/// Makes the files that the workloads need, below `root`.
pub fn make(root: &Path, workloads: &[&Workload]) -> io::Result<()> {
    for workload in workloads {
        match workload.urls {
            Urls::File(file) | Urls::Rewritten(file, ..) | Urls::Guarded(file, _) => {
                write(root, file.name, file.bytes)?
            }
            Urls::Tree(age) => make_tree(root, age)?,
            Urls::Story(story) => story.make(root)?,
            Urls::Missing
            | Urls::Virtual(..)
            | Urls::Printing(..)
            | Urls::Sized(..)
            | Urls::InServer(_) => {}
            Urls::Cml => make_cml(root)?,
            Urls::Script(script) => fs::write(root.join(script.name), script.text)?,
        }
    }
    // The first measured run must not share the disk with the writing of these.
    rustix::fs::syncfs(fs::File::open(root)?)?;
    Ok(())
}

/// Makes all scripts below `root`.
pub fn make_scripts(root: &Path) -> io::Result<()> {
    let scripts = [&PRINT_123, &PRINT_40K, &INLINE, &SEND_TEMPFILE, &SLEEP_5_MS];
    let mut written = scripts
        .iter()
        .map(|script| fs::write(root.join(script.name), script.text));
    written.try_for_each(|done| done)
}

/// Path of the `n`th file of the tree below the document root: 100 directories of 100 files.
pub fn tree_path(age: Age, n: u64) -> String {
    format!("{}/{:02}/page-{n:04}.html", tree(age), n % 100)
}

/// Its directory.
fn tree(age: Age) -> &'static str {
    match age {
        Age::Any => "tree",
        Age::Young => "young",
    }
}

/// Before a server starts: changes the files that shall be young.
pub fn renew(root: &Path, workload: &Workload) -> io::Result<()> {
    let Urls::Tree(Age::Young) = workload.urls else {
        return Ok(());
    };
    let now = SystemTime::now();
    (0..TREE_FILES).try_for_each(|n| {
        let path = root.join(tree_path(Age::Young, n));
        fs::File::options()
            .write(true)
            .open(path)?
            .set_modified(now)
    })
}

/// `bytes` printable bytes, different for every name.
pub fn content(name: &str, bytes: u64) -> Vec<u8> {
    // Lehmer's generator with a full period, seeded by the name (FNV-1a).
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut state = seed % 0x7fff_fffe + 1;
    let next = move || {
        state = state * 48271 % 0x7fff_ffff;
        b'a' + (state % 26) as u8
    };
    std::iter::repeat_with(next).take(bytes as usize).collect()
}

/// A page of one part that is always fresh.
fn make_cml(root: &Path) -> io::Result<()> {
    let directory = root.join(CML_DIRECTORY);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("part.html"), CML_PRINTS)?;
    fs::write(directory.join("index.cml"), CML_SCRIPT)
}

fn make_tree(root: &Path, age: Age) -> io::Result<()> {
    for directory in 0..100 {
        fs::create_dir_all(root.join(format!("{}/{directory:02}", tree(age))))?;
    }
    (0..TREE_FILES).try_for_each(|n| write(root, &tree_path(age, n), TREE_FILE_BYTES))
}

fn write(root: &Path, name: &str, bytes: u64) -> io::Result<()> {
    fs::write(root.join(name), content(name, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Suite, choose};

    #[test]
    fn only_young_files_are_renewed() {
        // In memory: they are ten thousand.
        let root = tempfile::tempdir_in("/dev/shm").unwrap();
        let only = |name: &str| choose(Suite::Static, &[name.to_owned()]).unwrap();
        make(root.path(), &only("tree-young")).unwrap();
        let path = root.path().join(tree_path(Age::Young, TREE_FILES - 1));
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let changed = || fs::metadata(&path).unwrap().modified().unwrap();
        renew(root.path(), only("tree")[0]).unwrap();
        assert_eq!(changed(), SystemTime::UNIX_EPOCH);
        renew(root.path(), only("tree-young")[0]).unwrap();
        assert!(changed() > SystemTime::UNIX_EPOCH);
    }
}
