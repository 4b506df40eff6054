//! The packages that the files of a script require, added to a decision.

use super::decision::Decision;
use super::faults;
use super::machine::Machine;
use super::packages::{self, PackageRefusal};
use super::verdict::{Narrower, Need, RequestKind, Verdict};
use crate::base::text::{self, printable};
use crate::fault::{Fault, Kind};
use crate::policy::grammar::packages::{name, names};
use crate::policy::grammar::{FileProblem, PackageRequirements};
use std::sync::Arc;

impl Decision {
    /// Adds the packages that the script's files require: they go into the shape, or every call is
    /// refused. `by_hand`: says where somebody installed the packages already. They then need no
    /// policy.
    pub fn add_requirements(
        &mut self,
        requirements: Result<Option<PackageRequirements>, FileProblem>,
        by_hand: Option<&str>,
        machine: &Machine,
    ) {
        let mut allowances = self.packages.allowed.values();
        let is_policy_silent = allowances.all(
            |allowance| matches!(allowance, Err(refusal) if refusal.narrower == Narrower::Policy),
        );
        let by_hand = by_hand.filter(|_| is_policy_silent);
        let files = match &requirements {
            Ok(None) => return,
            Ok(Some(required)) => names(&required.sources),
            Err(problem) => name(&problem.path),
        };
        if let Some(how) = by_hand {
            let note = format!("{files}: nothing is installed; {how}");
            return self.notes.all.push(note);
        }
        match requirements {
            Ok(None) => {}
            Ok(Some(required)) => self.add_packages(required, machine),
            Err(problem) => self.refuse_unreadable(&problem),
        }
    }

    /// Refuses every call: nothing is installed from files that cannot be read in full.
    fn refuse_unreadable(&mut self, FileProblem { path, problem }: &FileProblem) {
        let line = if problem.line > 0 {
            format!(":{}", problem.line)
        } else {
            String::new()
        };
        let name = name(path);
        let message = printable(&problem.message);
        let words = format!("{name}{line}: {message}");
        self.verdicts.push(Verdict::denied(
            RequestKind::Package,
            &name,
            Narrower::Manifest,
            &*words,
            &[],
        ));
        let place = format!("{}{line}: {message}", text::path(path));
        let message = "this tool's packages cannot be read, so it was not started";
        let fault = Fault::new(Kind::DependencyError, message);
        self.stop(fault.details(words).person(place));
    }

    fn add_packages(&mut self, required: PackageRequirements, machine: &Machine) {
        let allowance = self.packages.allowed.get(&required.ecosystem);
        let id = self.identity.tool.split('@').next().unwrap_or_default();
        let unpinned = packages::unpinned(&required, allowance, id);
        self.notes.all.extend(unpinned);
        let vulnerable = packages::vulnerable(&required, allowance);
        self.notes.all.extend(vulnerable);
        let answer = packages::grant_of(&required, allowance, &machine.indexes);
        let tool = printable(&self.identity.tool);
        match answer.grant {
            Ok(grant) => {
                if let Ok(shape) = &mut self.shape {
                    Arc::make_mut(shape).packages = Some(grant.clone());
                }
                self.grants.packages = Some(grant);
            }
            Err(PackageRefusal::Denied(refused)) => {
                let message = "this tool requires packages that this host never installs";
                let place = &answer.verdict.place;
                let person = printable(&format!("{tool}: {} ({place})", refused.join("; ")));
                let fault = Fault::new(Kind::DependencyError, message);
                self.stop(fault.details(refused.join("\n")).person(person));
            }
            Err(PackageRefusal::Lacks(words)) => {
                let person = format!("{tool} is unavailable: it needs {words}");
                self.stop(faults::lacking(&words).person(person));
                self.lacks.push(Need::new("", words));
            }
        }
        self.verdicts.push(answer.verdict);
        self.packages.required = Some(Arc::new(required));
    }

    /// Refuses every call with this fault, unless another fault does already.
    fn stop(&mut self, fault: Fault) {
        if self.shape.is_ok() {
            self.shape = Err(fault);
        }
    }
}
