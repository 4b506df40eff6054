//! The synthetic address of each name that a call asked for, of 198.18.0.0/15 (RFC 2544), which no host has.

use std::net::{IpAddr, Ipv4Addr};

/// Most names of one call.
pub const NAMES: usize = 256;

/// The first bytes of the range. The tests have one of the loopback range, where addresses need no setting up.
const RANGE: u8 = if cfg!(test) { 127 } else { 198 };

#[derive(Default)]
pub struct Names(Vec<String>);

impl Names {
    /// The address of a name: the same at each asking. `None`: there are `NAMES` others.
    pub fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        let known = self.0.iter().position(|known| known == name);
        if known.is_none() && self.0.len() < NAMES {
            self.0.push(name.to_owned());
        }
        let index = u8::try_from(known.unwrap_or(self.0.len() - 1)).ok()?;
        (self.0.get(usize::from(index))? == name).then_some(Ipv4Addr::new(RANGE, 18, 1, index))
    }

    pub fn name(&self, address: IpAddr) -> Option<&str> {
        match address {
            IpAddr::V4(address) => match address.octets() {
                [RANGE, 18, 1, index] => self.0.get(usize::from(index)).map(String::as_str),
                _ => None,
            },
            IpAddr::V6(_) => None,
        }
    }
}

/// Whether an address is one of those that stand for names.
pub fn synthetic(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(address) if matches!(address.octets(), [RANGE, 18 | 19, ..]))
}
