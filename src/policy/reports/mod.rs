//! What a decision, a policy or two of them say, for a person and for a program. Reports decide
//! nothing.

pub mod audit;
pub mod diff;
pub mod suggest;
pub mod who_can;
