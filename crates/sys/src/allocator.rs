//! Settings of the C library's allocator, which Rust's standard allocator uses.

/// From now on allocations of `bytes` or more get their own pages, which go back to the system when they are
/// freed. By default glibc raises that limit, up to 32 MiB, when it first frees a large allocation; then each
/// thread that ever had a large allocation keeps as much. Other C libraries return memory anyway, or have no
/// such limit.
pub fn give_back_from(bytes: usize) {
    #[cfg(target_env = "gnu")]
    if let Ok(bytes) = libc::c_int::try_from(bytes) {
        // SAFETY: this sets a number that the allocator reads, which may be done at any time. It touches no
        // memory of this program. An unsuitable number is refused and changes nothing.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, bytes) };
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// Returns free memory that the allocator keeps, of all threads, to the system. It walks through the whole
/// heap, so a worker should not call it. Other C libraries keep little.
pub fn give_back_now() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time and from any thread. It takes the locks of the allocator,
    // and touches no memory that is in use. It has no precondition.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_env = "gnu", target_os = "linux"))]
mod tests {
    use std::hint::black_box;

    const LARGE: usize = 2 << 20;

    #[test]
    fn large_allocations_are_given_back() {
        super::give_back_from(1 << 20);
        // A new thread has its own arena in the heap.
        let kept = std::thread::spawn(|| {
            // By default, freeing this one would raise the limit.
            drop(black_box(vec![1_u8; LARGE]));
            let is_kept = |_| {
                let large = black_box(vec![1_u8; LARGE]);
                let place = large.as_ptr().addr();
                drop(large);
                // Nothing is mapped there, unless another thread has just mapped something.
                is_mapped(place + LARGE / 2)
            };
            (0..100).all(is_kept)
        });
        assert!(!kept.join().expect("no panic"));
    }

    #[test]
    fn freed_memory_before_what_is_needed_is_given_back() {
        const SIZE: usize = 64 * 1024;
        let resident = std::thread::spawn(|| {
            let freed: Vec<Vec<u8>> = (0..256).map(|_| black_box(vec![1_u8; SIZE])).collect();
            let needed = black_box(vec![1_u8; 64]);
            let places: Vec<usize> = freed.iter().map(|block| block.as_ptr().addr()).collect();
            drop(freed);
            super::give_back_now();
            let resident = places
                .iter()
                .filter(|place| is_resident(**place + SIZE / 2));
            let resident = resident.count();
            drop(needed);
            resident
        });
        let resident = resident.join().expect("no panic");
        assert!(resident < 8, "{resident} of 256 blocks");
    }

    /// Whether the page at `address` is in memory.
    fn is_resident(address: usize) -> bool {
        use std::os::unix::fs::FileExt;
        let pages = std::fs::File::open("/proc/self/pagemap").expect("it is there");
        let mut entry = [0; 8];
        // SAFETY: returns a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).expect("pages have a size");
        let place = (address / page * entry.len()) as u64;
        pages.read_exact_at(&mut entry, place).is_ok() && entry[7] & 0x80 != 0
    }

    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        maps.lines().any(|line| {
            let range = line.split_once(' ').map_or(line, |(range, _)| range);
            let (first, end) = range.split_once('-').expect("two addresses");
            let number = |text| usize::from_str_radix(text, 16).expect("a number");
            (number(first)..number(end)).contains(&address)
        })
    }
}
