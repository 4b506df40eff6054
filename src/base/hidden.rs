//! Hidden: variables, arguments and the like, which may hold a secret. Code reads the value, `Debug` shows nothing of it.
//!
//! For: whatever is printed for debugging, or could be one day. In: any value. Out: the same value.
//! Never: hides anything from serde: messages between our own processes carry it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Deref;

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden<T>(pub T);

impl<T> Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}
