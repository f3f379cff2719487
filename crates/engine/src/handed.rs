//! Objects that modules created before the server process started, while the process still had privileges.

use std::any::Any;
use std::sync::Arc;

/// Objects of modules, each found by its type. The engine does not use them.
#[derive(Clone, Default)]
pub struct Handed(Vec<Arc<dyn Any + Send + Sync>>);

impl Handed {
    /// Adds an object.
    #[must_use]
    pub fn with<T: Any + Send + Sync>(mut self, thing: Arc<T>) -> Handed {
        self.0.push(thing);
        self
    }

    /// The object of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let mut things = self.0.iter().map(Arc::clone);
        things.find_map(|thing| thing.downcast().ok())
    }
}
