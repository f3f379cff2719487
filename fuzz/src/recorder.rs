//! The memory of a recorder is read whatever it holds: a server process with a defect may have written
//! anything there.
//!
//! The input is laid over a memory with a few regions, so that the fuzzer does not have to find the magic
//! number.

use petrel_proto::recording::layout::LAYOUT_VERSION;
use petrel_proto::recording::{ReadError, Recording, Source};

pub fn recorder(input: &[u8]) {
    let _ = Recording::read(input);
    // A header of this version, and a directory in the input.
    let mut memory = vec![0_u8; 256 * 1024];
    memory[..8].copy_from_slice(b"petrelre");
    memory[8..16].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    memory[16..24].copy_from_slice(&(32 * 1024_u64).to_le_bytes());
    memory[32] = 4;
    let (directory, rest) = input.split_at(input.len().min(256));
    memory[64..64 + directory.len()].copy_from_slice(directory);
    let rest = &rest[..rest.len().min(64 * 1024)];
    // Regions begin here.
    let regions = 65_536;
    memory[regions..regions + rest.len()].copy_from_slice(rest);
    assert_eq!(memory.as_slice().bytes().ok(), Some(memory.len() as u64));
    let recording = Recording::read(memory.as_slice());
    // Otherwise no input would be looked at.
    assert!(!matches!(recording, Err(ReadError::OtherVersion(_))));
    if let Ok(recording) = recording {
        for record in recording.all() {
            assert!(record.host.len() <= 255 && record.path.len() <= 255);
            assert!(record.waits.len() <= 255);
        }
    }
}
