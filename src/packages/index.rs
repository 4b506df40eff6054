//! Index: where packages come from, as the host's configuration says.

use crate::policy::packages::Ecosystem;
use crate::policy::{HostGrant, SecretGrant};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub name: String,
    pub ecosystem: Ecosystem,
    pub url: String,
    pub hosts: Vec<HostGrant>,
    pub credential: Option<SecretGrant>,
}
