//! Lends a value to the functions that scripts call.
//!
//! Functions in a Lua state live as long as the state. What they work on, such as the request, is only
//! available while a script runs. Its owner lends it for the duration of a call.

use std::cell::Cell;
use std::ptr::NonNull;

/// A place for a `T` that is lent for a time.
pub struct Lent<T> {
    place: Cell<Option<NonNull<T>>>,
}

impl<T: 'static> Lent<T> {
    /// An empty place.
    pub const fn new() -> Lent<T> {
        Lent {
            place: Cell::new(None),
        }
    }

    /// Lends `value` while `run` runs. Afterwards the value that was lent before is back.
    pub fn lend<R>(&self, value: &mut T, run: impl FnOnce() -> R) -> R {
        let _back = Back {
            place: &self.place,
            before: self.place.replace(Some(NonNull::from(value))),
        };
        run()
    }

    /// Calls `run` with an empty place, for code that must not see the lent value. Afterwards the value is
    /// back.
    pub fn without<R>(&self, run: impl FnOnce() -> R) -> R {
        let _back = Back {
            place: &self.place,
            before: self.place.take(),
        };
        run()
    }

    /// Calls `with` with the lent value. Returns `None` if there is none, or if a caller further up the stack
    /// is using it.
    pub fn with<R>(&self, with: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut value = self.place.take()?;
        let _back = Back {
            place: &self.place,
            before: Some(value),
        };
        // SAFETY: the pointer was made in `lend` from a reference that is exclusively borrowed until `lend`
        // returns, and `lend` removes the pointer before that. The place is empty while `with` runs, so there
        // is no second reference. Cell keeps the type on one thread.
        Some(with(unsafe { value.as_mut() }))
    }
}

impl<T: 'static> Default for Lent<T> {
    fn default() -> Lent<T> {
        Lent::new()
    }
}

/// Restores the earlier content, even if a panic unwinds.
struct Back<'p, T> {
    place: &'p Cell<Option<NonNull<T>>>,
    before: Option<NonNull<T>>,
}

impl<T> Drop for Back<'_, T> {
    fn drop(&mut self) {
        self.place.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_can_be_changed_and_goes_back() {
        let lent = Lent::new();
        assert_eq!(lent.with(|_: &mut u32| ()), None);
        let mut value = 1;
        let inner = lent.lend(&mut value, || {
            lent.with(|value| *value += 1);
            lent.with(|outer| {
                *outer += 1;
                lent.with(|_| ())
            })
        });
        assert_eq!(inner, Some(None), "it was lent twice at the same time");
        assert_eq!(value, 3);
        assert_eq!(lent.with(|_| ()), None);
    }

    #[test]
    fn what_is_lent_can_be_kept_from_others() {
        let lent = Lent::new();
        let mut value = 1;
        lent.lend(&mut value, || {
            assert_eq!(lent.without(|| lent.with(|_| ())), None);
            lent.with(|value| *value += 1);
        });
        assert_eq!(value, 2);
    }

    #[test]
    fn loans_nest() {
        let lent = Lent::new();
        let (mut outer, mut inner) = (1, 10);
        lent.lend(&mut outer, || {
            lent.lend(&mut inner, || lent.with(|value| *value += 1));
            lent.with(|value| *value += 1);
        });
        assert_eq!((outer, inner), (2, 11));
    }
}
