//! What the process that starts the server has made for modules while it had the right to.

use std::any::Any;
use std::sync::Arc;

/// Things of modules, each found by its type. The engine does not look at them.
#[derive(Clone, Default)]
pub struct Handed(Vec<Arc<dyn Any + Send + Sync>>);

impl Handed {
    /// With one more.
    #[must_use]
    pub fn with<T: Any + Send + Sync>(mut self, thing: Arc<T>) -> Handed {
        self.0.push(thing);
        self
    }

    /// The one of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let mut things = self.0.iter().map(Arc::clone);
        things.find_map(|thing| thing.downcast().ok())
    }
}
