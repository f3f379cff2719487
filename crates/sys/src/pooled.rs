//! A box that goes back to a pool when its owner drops it.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// A box that is used again: as large as a pointer. When it is dropped, its content decides where it goes.
pub struct Pooled<T: GiveBack>(ManuallyDrop<Box<T>>);

/// An object that can go back to a pool.
pub trait GiveBack {
    /// Returns the object to its pool, because its owner has dropped it.
    fn give_back(self: Box<Self>);
}

impl<T: GiveBack> From<Box<T>> for Pooled<T> {
    fn from(content: Box<T>) -> Pooled<T> {
        Pooled(ManuallyDrop::new(content))
    }
}

impl<T: GiveBack> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: GiveBack> DerefMut for Pooled<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: GiveBack> Drop for Pooled<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: only this function takes the content, and nothing reads it afterwards: `drop` runs once,
        // and the field has no drop glue.
        let content = unsafe { ManuallyDrop::take(&mut self.0) };
        content.give_back();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    type Pool = Rc<RefCell<Vec<Box<Buffer>>>>;

    struct Buffer {
        bytes: Vec<u8>,
        pool: Pool,
    }

    impl GiveBack for Buffer {
        fn give_back(mut self: Box<Self>) {
            self.bytes.clear();
            let pool = Rc::clone(&self.pool);
            pool.borrow_mut().push(self);
        }
    }

    #[test]
    fn what_is_dropped_is_back_in_its_pool_with_its_memory() {
        let pool = Pool::default();
        let mut buffer = Pooled::from(Box::new(Buffer {
            bytes: Vec::new(),
            pool: Rc::clone(&pool),
        }));
        buffer.bytes.extend_from_slice(b"used");
        let place = buffer.bytes.as_ptr();
        assert_eq!(size_of_val(&buffer), size_of::<usize>());
        drop(buffer);
        let back = pool.take().pop().expect("it was given back");
        assert!(back.bytes.is_empty() && back.bytes.as_ptr() == place);
    }
}
