//! Past: what tools could write in earlier calls, kept out of the view of a script that could load it.
//!
//! For: the road, scripts that a call names. In: a confinement. Out: the same, without the places of earlier calls.
//! Never: costs more than a look at one file where no tool ever wrote above or below the script's folder.

use super::Service;
use crate::manifest::text::printable;
use crate::{fault, policy};
use fault::{Fault, Kind};
use std::path::Path;
use std::sync::Arc;

impl Service {
    /// Narrows a confinement by what was written before; the notes say by how much.
    pub(super) fn looks_back(&self, confinement: &mut policy::Confinement) -> Result<policy::Notes, Fault> {
        let shape = &confinement.shape;
        if shape.script.is_none() {
            return Ok(policy::Notes::default());
        }
        let places = self.written_around(&shape.folder)?;
        if places.is_empty() {
            return Ok(policy::Notes::default());
        }
        let (past, notes) = shape.past(&places).map_err(|who| planted(&who))?;
        if past != shape.past {
            Arc::make_mut(&mut confinement.shape).past = past;
        }
        Ok(notes)
    }

    /// Refuses a script that lies where a tool may write, or could in an earlier call.
    pub(super) fn is_planted(&self, script: &Path) -> Result<(), Fault> {
        let snapshot = self.parts.registry.snapshot();
        let mut before = policy::Written::default();
        self.written_around(script)?.iter().for_each(|place| before.before(place));
        snapshot.written.by(script).or_else(|| before.by(script)).map_or(Ok(()), |who| Err(planted(who)))
    }

    /// The places of earlier calls above and below a path, under the names that they have by now.
    fn written_around(&self, path: &Path) -> Result<Vec<policy::Place>, Fault> {
        let mut places = self.parts.audit.ledger().around(path).map_err(|why| {
            Fault::new(Kind::InternalError, "The call was refused: where tools wrote before is not known.")
                .person(format!("where tools wrote before is not known: {why}"))
                .retryable()
        })?;
        let snapshot = self.parts.registry.snapshot();
        let near = |place: &&policy::Place| place.tree.starts_with(path) || path.starts_with(&place.tree);
        places.extend(snapshot.moved.iter().filter(near).cloned());
        Ok(places)
    }
}

fn planted(who: &str) -> Fault {
    let message = "The script may not be run: it lies where a tool may write, and a tool cannot make tools.";
    let mend = format!("it lies where {}: if you know who made it, move it elsewhere", printable(who));
    Fault::new(Kind::SecurityError, message).person(mend)
}
