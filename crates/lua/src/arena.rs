//! The memory of a Lua state's small objects.
//!
//! A run of a small script makes some ten objects of a few words. Later the garbage collector frees
//! thousands of them in one step. The C library's allocator takes about a hundred instructions for each, and
//! one mprotect for every 4 KiB by which a worker's heap grows. An [`Arena`] has a list of free blocks for
//! each size. It takes about ten instructions, and calls the kernel only when it is made and when it ends.
//!
//! Its address space is limited. Blocks beyond that, and large blocks, come from mlua's allocator; so a state
//! that has grown in a burst gives most of its memory back. LuaJIT itself counts the memory of a state, and
//! counts the same with an arena and without.

use std::alloc::{Layout, dealloc};
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use mlua::{Lua, ffi};

/// The small blocks of one Lua state.
struct Arena {
    /// The first of [`ARENA_BYTES`] bytes that are mapped for this arena alone.
    start: NonNull<u8>,
    /// For each size the first of its free blocks.
    free: [*mut FreeBlock; SIZES],
    /// The size of the blocks in each slab in use, as a place in `free`.
    size_of_slab: [u8; SLABS],
    /// How many slabs are in use. The others have not been touched and take no memory.
    slabs_used: usize,
    /// mlua's allocator and its argument, an [`OuterArgument`].
    outer: ffi::lua_Alloc,
    outer_argument: *mut c_void,
    /// The first block of the state, which is the last one that it frees.
    first_block: *mut c_void,
}

/// A free block contains the address of the next one of its size.
struct FreeBlock {
    next: *mut FreeBlock,
}

/// What mlua 0.12 passes to its allocator: a box, which it frees only if the state still uses that allocator
/// at its end.
#[repr(C)]
struct OuterArgument {
    bytes_used: isize,
    bytes_max: isize,
    ignores_max: bool,
}

/// The most bytes that small blocks may take in an arena. A small state with all its garbage has room.
const ARENA_BYTES: usize = 16 << 20;
/// The blocks of one slab have one size.
const SLAB_BYTES: usize = 16 << 10;
const SLABS: usize = ARENA_BYTES / SLAB_BYTES;
/// Sizes are multiples of this, and so are addresses. LuaJIT needs 8, mlua's allocator guarantees 16.
const STEP: usize = 16;
/// Larger blocks come from mlua's allocator.
const BLOCK_BYTES_MAX: usize = 512;
const SIZES: usize = BLOCK_BYTES_MAX / STEP;

/// Gives the state of `lua` an arena. If there is no address space for one, the state goes on without.
///
/// # Errors
/// Memory has run out.
pub(crate) fn install(lua: &Lua) -> mlua::Result<()> {
    // If this fails, mlua could not use its allocator and has chosen LuaJIT's own, which is as good.
    if lua.set_memory_limit(0).is_err() {
        return Ok(());
    }
    // SAFETY: the closure is called with a state that is alive and belongs to this thread. It leaves the
    // stack empty, as the results demand. By the check above, the allocator is mlua's and its argument an
    // `OuterArgument`. The arena is passed to the state, which calls `allocate` with it, and nothing else
    // refers to it.
    unsafe {
        lua.exec_raw((), |state| {
            let is_main = ffi::lua_pushthread(state) == 1;
            ffi::lua_settop(state, 0);
            if !is_main {
                return;
            }
            let mut argument = ptr::null_mut();
            let outer = ffi::lua_getallocf(state, &mut argument);
            // LuaJIT's main thread is at the beginning of the first block (`GG_State`).
            if let Some(arena) = Arena::new(outer, argument, state.cast()) {
                ffi::lua_setallocf(state, allocate, Box::into_raw(arena).cast());
            }
        })
    }
}

/// What LuaJIT calls for memory, as the manual of Lua describes `lua_Alloc`. `old` bytes are not relied on
/// for blocks in the arena.
///
/// # Safety
/// `argument` is an arena that has been passed to the calling state. `block` is null, or a block of this
/// state that has `old` bytes and is in use.
unsafe extern "C" fn allocate(
    argument: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    let arena: *mut Arena = argument.cast();
    // SAFETY: by the contract of this function, and because only the state's thread calls it, and it does not
    // call itself, there is no other reference. The arena ends only here, after the last use of it: LuaJIT
    // frees its first block when everything else is freed, and calls no allocator afterwards.
    unsafe {
        if block.is_null() {
            return match new {
                0 => ptr::null_mut(),
                _ => (*arena).take(new),
            };
        }
        match ((*arena).size_of(block), new) {
            (Some(size), 0) => {
                (*arena).give_back(block, size);
                ptr::null_mut()
            }
            (Some(size), _) => (*arena).resize(block, size, new),
            (None, _) => {
                let is_last = new == 0 && block == (*arena).first_block;
                let resized = ((*arena).outer)((*arena).outer_argument, block, old, new);
                if is_last {
                    drop(Box::from_raw(arena));
                }
                resized
            }
        }
    }
}

impl Arena {
    /// `None` if the kernel has no address space that LuaJIT can use.
    fn new(
        outer: ffi::lua_Alloc,
        outer_argument: *mut c_void,
        first_block: *mut c_void,
    ) -> Option<Box<Arena>> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), ARENA_BYTES, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        if !is_addressable(start.addr() + ARENA_BYTES) {
            // SAFETY: nothing refers to the mapping, which was just made.
            unsafe { libc::munmap(start, ARENA_BYTES) };
            return None;
        }
        Some(Box::new(Arena {
            start: NonNull::new(start.cast())?,
            free: [ptr::null_mut(); SIZES],
            size_of_slab: [0; SLABS],
            slabs_used: 0,
            outer,
            outer_argument,
            first_block,
        }))
    }

    /// The size of a block as a place in `free`, if it is in the arena.
    #[inline]
    fn size_of(&self, block: *mut c_void) -> Option<usize> {
        // Addresses before the arena wrap around to large numbers.
        let offset = block.addr().wrapping_sub(self.start.addr().get());
        match offset < ARENA_BYTES {
            true => Some(usize::from(self.size_of_slab[offset / SLAB_BYTES])),
            false => None,
        }
    }

    /// A block of `bytes` bytes, at least one; null if memory has run out.
    #[inline]
    fn take(&mut self, bytes: usize) -> *mut c_void {
        if bytes <= BLOCK_BYTES_MAX {
            let size = (bytes - 1) / STEP;
            let mut block = self.free[size];
            if block.is_null() {
                block = self.free_of_new_slab(size);
            }
            if !block.is_null() {
                // SAFETY: it is a free block, by `give_back` and `free_of_new_slab`, so it contains the next.
                self.free[size] = unsafe { (*block).next };
                return block.cast();
            }
        }
        // SAFETY: mlua's allocator is called with its own argument, which lives as long as the arena.
        unsafe { (self.outer)(self.outer_argument, ptr::null_mut(), 0, bytes) }
    }

    /// Puts a block of the arena into the list of its size.
    ///
    /// # Safety
    /// [`Arena::take`] has returned `block`, which is not in use any more, and `size` is its size.
    #[inline]
    unsafe fn give_back(&mut self, block: *mut c_void, size: usize) {
        let block: *mut FreeBlock = block.cast();
        if let Some(free) = self.free.get_mut(size) {
            // SAFETY: the block has STEP bytes or more, starts at a multiple of STEP, and belongs to the
            // arena again.
            unsafe { (*block).next = *free };
            *free = block;
        }
    }

    /// Moves a block of the arena to one of `bytes` bytes unless it is large enough. Null if memory has run
    /// out; the block is then unchanged.
    ///
    /// # Safety
    /// As for [`Arena::give_back`], but the block is in use. `bytes` is not zero.
    unsafe fn resize(&mut self, block: *mut c_void, size: usize, bytes: usize) -> *mut c_void {
        let has = (size + 1) * STEP;
        if bytes <= has {
            return block;
        }
        let larger = self.take(bytes);
        if !larger.is_null() {
            // SAFETY: both blocks are in use, so they do not overlap, and both have `has` bytes at least.
            // Afterwards LuaJIT uses only the larger one.
            unsafe {
                ptr::copy_nonoverlapping(block.cast::<u8>(), larger.cast(), has);
                self.give_back(block, size);
            }
        }
        larger
    }

    /// Divides the next slab into blocks of a size. Returns the first of them, which contains the next, or
    /// null if there is no slab left.
    #[cold]
    fn free_of_new_slab(&mut self, size: usize) -> *mut FreeBlock {
        let slab = self.slabs_used;
        let (Some(size_of_slab), Ok(place)) = (self.size_of_slab.get_mut(slab), u8::try_from(size))
        else {
            return ptr::null_mut();
        };
        *size_of_slab = place;
        self.slabs_used += 1;
        let bytes = (size + 1) * STEP;
        let mut next = ptr::null_mut();
        for number in (0..SLAB_BYTES / bytes).rev() {
            // SAFETY: the slab is one of the SLABS in the mapping and has not been used before. A block ends
            // within its slab. Slabs and blocks start at multiples of STEP, which is enough for a FreeBlock.
            unsafe {
                let block = self.start.add(slab * SLAB_BYTES + number * bytes);
                let block: *mut FreeBlock = block.as_ptr().cast();
                (*block).next = next;
                next = block;
            }
        }
        next
    }
}

/// Whether LuaJIT can use memory up to the address `end`. Its values have room for 47 bits of an address; the
/// kernel gives a process 48 of them on aarch64.
fn is_addressable(end: usize) -> bool {
    end <= 1 << 47
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the state has freed all its blocks, so nothing in the mapping is in use. mlua allocated the
        // argument by the global allocator, as a box of such a type, and forgets it when it sees at the end
        // of a state that the state uses another allocator. The test of `OuterArgument` notices if mlua
        // changes this.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), ARENA_BYTES);
            dealloc(self.outer_argument.cast(), Layout::new::<OuterArgument>());
        }
        #[cfg(test)]
        tests::ENDED.set(tests::ENDED.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How many arenas this thread has ended.
        pub(super) static ENDED: Cell<usize> = const { Cell::new(0) };
    }

    #[test]
    fn an_arena_is_where_luajit_can_address_it() {
        assert!(is_addressable(0x7fff_ffff_f000));
        assert!(!is_addressable(0xffff_8100_0000));
    }

    fn with_arena() -> Lua {
        let lua = Lua::new();
        install(&lua).expect("memory");
        lua
    }

    /// The arena of a state.
    fn arena(lua: &Lua) -> *mut Arena {
        let mut argument = ptr::null_mut();
        // SAFETY: the state is alive and belongs to this thread.
        unsafe {
            lua.exec_raw::<()>((), |state| {
                let used = ffi::lua_getallocf(state, &mut argument);
                assert!(ptr::fn_addr_eq(used, allocate as ffi::lua_Alloc));
            })
            .expect("memory");
        }
        argument.cast()
    }

    fn slabs_used(lua: &Lua) -> usize {
        // SAFETY: the state is alive, so its arena is, and it does nothing meanwhile.
        unsafe { (*arena(lua)).slabs_used }
    }

    #[test]
    fn an_arena_ends_with_its_state() {
        let lua = with_arena();
        let table = lua.create_table().expect("memory");
        drop(lua);
        drop(table);
        assert_eq!(ENDED.get(), 1);
    }

    #[test]
    fn garbage_is_used_again() {
        let lua = with_arena();
        let make = "for i = 1, 20000 do local t = { i, { i }, tostring(i) } end collectgarbage()";
        lua.load(make).exec().expect("sound");
        let slabs = slabs_used(&lua);
        for _ in 0..20 {
            lua.load(make).exec().expect("sound");
        }
        let more = slabs_used(&lua) - slabs;
        assert!(more <= 4, "{slabs} slabs, and then {more} more");
    }

    #[test]
    fn a_state_outgrows_its_arena_and_is_counted_all_the_same() {
        let lua = with_arena();
        let before = lua.used_memory();
        let keep = "kept = {} for i = 1, 400000 do kept[i] = { i } end";
        lua.load(keep).exec().expect("sound");
        assert_eq!(slabs_used(&lua), SLABS);
        assert!(lua.used_memory() > before + 2 * ARENA_BYTES);
        let sum = "local sum = 0 for i = 1, #kept do sum = sum + kept[i][1] end return sum";
        let sum: f64 = lua.load(sum).eval().expect("sound");
        assert_eq!(sum, 400_000.0 * 400_001.0 / 2.0);
        lua.load("kept = nil collectgarbage() collectgarbage()")
            .exec()
            .expect("sound");
        assert!(lua.used_memory() < before + (1 << 20));
    }

    /// A list of operations on blocks of all sizes: blocks do not overlap, keep their content, and are where
    /// `size_of` says.
    #[test]
    fn blocks_keep_what_is_written_to_them() {
        let lua = with_arena();
        let owner = arena(&lua);
        let mut blocks: Vec<(*mut u8, usize, u8)> = Vec::new();
        let mut seed = 1_u32;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            usize::try_from(seed >> 8).expect("it is small") % below
        };
        // SAFETY: every block is used as the contract of `allocate` says, by the thread of the state, while
        // the state itself does nothing.
        let change = |block: *mut u8, old, new| unsafe {
            allocate(owner.cast(), block.cast(), old, new).cast::<u8>()
        };
        let check = |(block, bytes, mark): (*mut u8, usize, u8), upto: usize| {
            assert!(block.addr().is_multiple_of(STEP));
            // SAFETY: the block has `bytes` bytes, which were all written.
            let content = unsafe { std::slice::from_raw_parts(block, bytes.min(upto)) };
            assert!(content.iter().all(|byte| *byte == mark));
        };
        // SAFETY: the block has `bytes` bytes.
        let write = |block: *mut u8, bytes, mark| unsafe { block.write_bytes(mark, bytes) };
        for step in 0..100_000_u32 {
            let (bytes, mark) = (1 + random(700), step.to_le_bytes()[0]);
            match random(3) {
                _ if blocks.len() < 10 => {
                    blocks.push((change(ptr::null_mut(), 0, bytes), bytes, mark))
                }
                0 => {
                    let (block, old, mark) = blocks.swap_remove(random(blocks.len()));
                    check((block, old, mark), old);
                    assert!(change(block, old, 0).is_null());
                    continue;
                }
                1 => {
                    let (block, old, before) = blocks.swap_remove(random(blocks.len()));
                    let moved = change(block, old, bytes);
                    check((moved, bytes, before), old);
                    blocks.push((moved, bytes, mark));
                }
                _ if blocks.len() < 2000 => {
                    blocks.push((change(ptr::null_mut(), 0, bytes), bytes, mark));
                }
                _ => continue,
            }
            let (block, bytes, mark) = *blocks.last().expect("it was pushed");
            write(block, bytes, mark);
        }
        for (block, bytes, mark) in blocks {
            check((block, bytes, mark), bytes);
            assert!(change(block, bytes, 0).is_null());
        }
    }

    /// If a new version of mlua fails here, see what its `RawLua` does when it is dropped.
    #[test]
    fn mlua_passes_the_argument_that_an_arena_frees() {
        let lua = Lua::new();
        lua.set_memory_limit(123 << 20).expect("its allocator");
        let used = lua.used_memory();
        let mut argument = ptr::null_mut();
        // SAFETY: the state is alive and belongs to this thread. The argument is a block of the C library's,
        // of at least the size that is checked.
        unsafe {
            lua.exec_raw::<()>((), |state| {
                ffi::lua_getallocf(state, &mut argument);
            })
            .expect("memory");
            assert_eq!(
                libc::malloc_usable_size(argument),
                size_of::<OuterArgument>()
            );
            let argument = &*argument.cast::<OuterArgument>();
            assert_eq!(argument.bytes_max, 123 << 20);
            assert!(argument.bytes_used.unsigned_abs().abs_diff(used) < 4096);
            assert!(!argument.ignores_max);
        }
        lua.set_memory_limit(0).expect("its allocator");
    }
}
