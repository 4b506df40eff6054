//! Lists of tools, each made once for the tools and rules of one moment, and for callers with the
//! same rights.

use super::catalog::{Catalog, OfferKey};
use super::request::Caller;
use crate::base::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// Lists that are kept.
const MAX_CACHED_LISTS: usize = 64;

/// A list that is made by the first who needs it.
type CachedList<L> = Arc<OnceLock<Arc<L>>>;

/// The lists of this moment.
pub struct Lists<L>(Mutex<Vec<(OfferKey, CachedList<L>)>>);

impl<L> Default for Lists<L> {
    fn default() -> Lists<L> {
        Lists(Mutex::default())
    }
}

impl<L> Lists<L> {
    /// The list of a caller. It is not kept while the rules cannot be read.
    pub fn find(&self, catalog: &Catalog, caller: &Caller, make: impl FnOnce() -> L) -> Arc<L> {
        let make = || Arc::new(make());
        let Ok(key) = catalog.offer_key(caller) else {
            return make();
        };
        self.cell(key).get_or_init(make).clone()
    }

    fn cell(&self, key: OfferKey) -> CachedList<L> {
        let mut kept = lock(&self.0);
        kept.retain(|(other, _)| other.is_of_same_moment(&key));
        if let Some((_, list)) = kept.iter().find(|(other, _)| *other == key) {
            return list.clone();
        }
        if kept.len() == MAX_CACHED_LISTS {
            kept.remove(0);
        }
        let list = CachedList::default();
        kept.push((key, list.clone()));
        list
    }
}
