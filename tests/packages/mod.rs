//! Packages: what a script requires, from outside.

mod found;
