//! The layers of overlays (overlayfs). To open a file of an overlay means to open one of a layer. If the
//! layer is on a remote file system, the overlay counts as remote, too.
//!
//! The options of the mount name the layers, by paths that were valid where and when it was mounted. A
//! relative path, or one of another mount namespace (a container's own root), tells nothing here.

use super::{MountLine, Storage, unescape};

/// The layers in the options of an overlay that have absolute paths.
pub(super) fn layers(options: &[u8]) -> Vec<Vec<u8>> {
    let mut layers = Vec::new();
    for option in options.split(|byte| *byte == b',') {
        let mut halves = option.splitn(2, |byte| *byte == b'=');
        let (Some(name), Some(value)) = (halves.next(), halves.next()) else {
            continue;
        };
        let value = unescape(value);
        match name {
            b"lowerdir" => split(&value, &mut layers),
            // Since Linux 6.5 there can be an option for each layer.
            b"lowerdir+" | b"datadir+" | b"upperdir" => layers.push(value),
            _ => {}
        }
    }
    layers.retain(|layer| layer.starts_with(b"/"));
    layers
}

/// Splits `/a:/b::/c`. A backslash precedes a colon in a path.
fn split(text: &[u8], layers: &mut Vec<Vec<u8>>) {
    let mut layer = Vec::new();
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => layer.extend(bytes.next()),
            b':' => layers.push(std::mem::take(&mut layer)),
            byte => layer.push(*byte),
        }
    }
    layers.push(layer);
}

/// Makes overlays remote that have a remote layer.
pub(super) fn judge(lines: &mut [MountLine]) {
    for _ in 0..STACKED_MAX {
        // Remote mounts are few, while there may be many overlays with many layers.
        let is_remote = |(at, line): (usize, &MountLine)| {
            (line.mount.place.storage == Storage::Remote).then_some(at)
        };
        let remote: Vec<usize> = lines.iter().enumerate().filter_map(is_remote).collect();
        for at in 0..lines.len() {
            let layers = &lines[at].layers;
            if layers
                .iter()
                .any(|layer| has_remote(lines, &remote, at, layer))
            {
                lines[at].mount.place.storage = Storage::Remote;
            }
        }
    }
}

/// Whether `layer` of the overlay in line `of` is on one of the remote mounts, which are in lines `remote`.
/// The overlay itself may cover that mount: an earlier mount on the same directory counts as well.
fn has_remote(lines: &[MountLine], remote: &[usize], of: usize, layer: &[u8]) -> bool {
    let is_over = |at: &usize| *at != of && lines[*at].mount.covers(layer);
    if !remote.iter().any(is_over) {
        return false;
    }
    let others = lines.iter().enumerate().filter(|(at, _)| *at != of);
    let over: Vec<&MountLine> = others
        .map(|(_, line)| line)
        .filter(|line| line.mount.covers(layer))
        .collect();
    let longest = over.iter().map(|line| line.mount.point.len()).max();
    over.iter().any(|line| {
        Some(line.mount.point.len()) == longest && line.mount.place.storage == Storage::Remote
    })
}

/// How many overlays can be layers of each other: the kernel allows no more.
const STACKED_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// The storage of the mount at `point`, if mountinfo has `lines` after a local root, an NFS and a FUSE
    /// file system.
    fn storage_at(point: &str, lines: &str) -> Storage {
        let text = format!(
            "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
             23 22 0:50 / /mnt/nfs rw - nfs4 server:/x rw,vers=4.2\n\
             24 22 0:51 / /mnt/a\\040b rw - fuse.sshfs host: rw\n\
             {lines}\n"
        );
        let table = parse(text.as_bytes());
        let place = table
            .mount_over(point.as_bytes())
            .expect("/ is there")
            .place;
        // Descriptors are found by the id of the mount.
        assert!(table.by_id.values().any(|known| *known == place), "{lines}");
        place.storage
    }

    fn storage_with(options: &str) -> Storage {
        let line = "30 22 0:60 / /srv/merged rw,relatime shared:9 - overlay overlay";
        storage_at("/srv/merged", &format!("{line} {options}"))
    }

    #[test]
    fn an_overlay_is_as_remote_as_its_layers() {
        let remote = [
            "rw,lowerdir=/mnt/nfs/base,upperdir=/var/upper,workdir=/var/work,uuid=on",
            "ro,lowerdir=/srv/a:/mnt/nfs",
            "rw,lowerdir=/srv/a,upperdir=/mnt/nfs/upper,workdir=/mnt/nfs/work",
            "rw,lowerdir+=/srv/a,lowerdir+=/mnt/nfs/b,upperdir=/var/upper,workdir=/var/work",
            "ro,lowerdir+=/srv/a,datadir+=/mnt/nfs/data",
            "ro,lowerdir=/srv/a::/mnt/nfs/data",
            "ro,lowerdir=/srv/a:/mnt/a\\040b/c",
        ];
        for options in remote {
            assert_eq!(storage_with(options), Storage::Remote, "{options}");
        }
        let local = [
            "rw,lowerdir=/srv/a:/srv/b,upperdir=/var/upper,workdir=/var/work",
            // Paths that have the name of another mount as a prefix, or are a directory above it.
            "ro,lowerdir=/mnt/nfs2:/mnt",
            "ro,lowerdir=/srv/a\\134:/mnt/nfs",
            "rw,lowerdir=l/ABC:l/DEF,upperdir=4711/diff,workdir=4711/work",
            "rw,workdir=/mnt/nfs/work",
            "rw,lowerdir",
            "rw",
            "",
        ];
        for options in local {
            assert_eq!(storage_with(options), Storage::Disk, "{options}");
        }
    }

    #[test]
    fn an_overlay_on_its_own_layer_is_judged_by_what_it_hides() {
        let options = "lowerdir=/mnt/nfs,upperdir=/var/upper,workdir=/var/work";
        let line = format!("30 23 0:60 / /mnt/nfs rw - overlay overlay rw,{options}");
        assert_eq!(storage_at("/mnt/nfs/a", &line), Storage::Remote);
        let line = "30 22 0:60 / / rw - overlay overlay rw,lowerdir=/usr/l,upperdir=/usr/u";
        assert_eq!(storage_at("/", line), Storage::Disk);
    }

    #[test]
    fn an_overlay_of_an_overlay_is_as_remote_as_that() {
        let overlay = |id: u32, name: &str, lower: &str| {
            format!("{id} 22 0:{id} / /srv/{name} ro - overlay overlay ro,lowerdir={lower}")
        };
        let lines = [
            overlay(30, "first", "/mnt/nfs:/srv/b"),
            overlay(31, "second", "/srv/first:/srv/a"),
            overlay(32, "local", "/srv/a:/srv/b"),
        ];
        // The order of the lines does not matter.
        for order in [[0, 1, 2], [2, 1, 0]] {
            let lines = order.map(|at: usize| &*lines[at]).join("\n");
            let storage = |name: &str| storage_at(&format!("/srv/{name}/x"), &lines);
            assert_eq!(storage("first"), Storage::Remote, "{lines}");
            assert_eq!(storage("second"), Storage::Remote, "{lines}");
            assert_eq!(storage("local"), Storage::Disk, "{lines}");
        }
    }
}
