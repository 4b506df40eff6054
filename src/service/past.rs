//! Past: what tools could write in earlier calls, kept out of the view of a script that could load it.
//!
//! For: the road. In: a confinement; a script that a call names. Out: the same confinement without the places of
//! earlier calls; a refusal of a script that lies in one.
//! Never: costs more than a look at one file where no tool ever wrote above or below the script's folder.

use super::{Service, ledger};
use crate::fault::Fault;
use crate::policy;
use std::path::Path;

impl Service {
    /// Narrows a confinement by what was written before; the notes say by how much.
    pub(super) fn looks_back(&self, confinement: &mut policy::Confinement) -> Result<policy::Notes, Fault> {
        let snapshot = self.parts.registry.snapshot();
        self.parts.audit.ledger().leave_out(&mut confinement.shape, &snapshot.moved)
    }

    /// Refuses a script that lies where a tool may write, or could in an earlier call.
    pub(super) fn is_planted(&self, script: &Path) -> Result<(), Fault> {
        let snapshot = self.parts.registry.snapshot();
        let places = self.parts.audit.ledger().near(script, &snapshot.moved)?;
        let before = || places.iter().find_map(|place| place.writer_of(script));
        let who = snapshot.written.by(script).map(str::to_owned).or_else(before);
        who.map_or(Ok(()), |who| Err(ledger::planted(&who)))
    }
}
