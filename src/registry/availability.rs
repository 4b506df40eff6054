//! What a tool still needs before a call can be served. Nothing is started to find out.

use super::Tool;
use crate::base::json::escape_segment;
use crate::fault::Kind;
use crate::policy::{self, Need};
use std::collections::{BTreeMap, BTreeSet};

/// Everything but a policy's refusal that keeps a call from starting. `decision`: of this tool, since an interpreter
/// that a policy names for other tools does not serve it.
pub fn needs_of(tool: &Tool, decision: &policy::Decision) -> Vec<Need> {
    tool.needs.iter().chain(&decision.lacks).cloned().collect()
}

/// The need of a tool whose asks policy refuses, and so every call: known before any call.
pub fn unsatisfied(tool: &Tool, decision: &policy::Decision) -> Option<Need> {
    if !refused(decision) {
        return None;
    }
    let words = match decision.denied().any(policy::Verdict::never) {
        true => "a manifest that asks for less, since no policy can allow this",
        false => "a policy that allows what it asks",
    };
    Some(Need::new("", format!("{words}: see `toolhost audit {}`", tool.manifest.id)))
}

/// Whether policy refuses every call.
pub fn refused(decision: &policy::Decision) -> bool {
    decision.shape.as_ref().is_err_and(|fault| fault.kind == Kind::SecurityError)
}

/// Settles `requires` among the loaded tools: a tool is ready when a ready tool serves each requirement.
pub(super) fn settle_requires(tools: &mut [Tool]) {
    let mut by_id: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut waiters: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, tool) in tools.iter().enumerate() {
        by_id.entry(tool.manifest.id.clone()).or_default().push(index);
        for id in tool.manifest.requires.keys() {
            waiters.entry(id.clone()).or_default().push(index);
        }
    }
    let mut met: BTreeSet<usize> = BTreeSet::new();
    let mut queue: Vec<usize> = (0..tools.len()).collect();
    while let Some(index) = queue.pop() {
        let Some(tool) = tools.get(index) else { continue };
        if met.contains(&index) || !tool.needs.is_empty() || !unmet(tool, tools, &by_id, &met).is_empty() {
            continue;
        }
        met.insert(index);
        queue.extend(waiters.get(&tool.manifest.id).into_iter().flatten());
    }
    let reasons: Vec<(usize, Vec<Need>)> = tools
        .iter()
        .enumerate()
        .filter(|(index, tool)| !met.contains(index) && !tool.manifest.requires.is_empty())
        .map(|(index, tool)| (index, unmet(tool, tools, &by_id, &met)))
        .collect();
    let circular = circles(tools, &by_id, &met);
    for (index, mut reasons) in reasons {
        if circular.contains(&index) {
            reasons.push(Need::mistaken("/requires", "requirements that do not go round in a circle (requires)"));
        }
        tools[index].needs.append(&mut reasons);
    }
}

/// The requirements of one tool that no ready tool serves, in words.
fn unmet(tool: &Tool, tools: &[Tool], by_id: &BTreeMap<String, Vec<usize>>, met: &BTreeSet<usize>) -> Vec<Need> {
    let mut needs = Vec::new();
    for (id, range) in &tool.manifest.requires {
        let versions = by_id.get(id).map(Vec::as_slice).unwrap_or_default();
        let fits = |index: &&usize| tools.get(**index).is_some_and(|other| range.matches(&other.manifest.version));
        let fitting: Vec<_> = versions.iter().filter(fits).collect();
        if fitting.iter().any(|index| met.contains(index)) {
            continue;
        }
        let pointer = format!("/requires/{}", escape_segment(id));
        let need = if versions.is_empty() {
            Need::mistaken(pointer, format!("the tool {id} {range} (requires), which is not loaded"))
        } else if fitting.is_empty() {
            let there: Vec<_> =
                versions.iter().filter_map(|i| tools.get(*i)).map(|t| t.manifest.version.to_string()).collect();
            Need::mistaken(pointer, format!("the tool {id} {range} (requires); loaded: {}", there.join(", ")))
        } else {
            Need::new(pointer, format!("the tool {id} {range} (requires), which is itself unavailable"))
        };
        needs.push(need);
    }
    needs
}

/// Tools on a circle of requirements: removes, again and again, tools that require none left, then those none requires.
fn circles(tools: &[Tool], by_id: &BTreeMap<String, Vec<usize>>, met: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut left: BTreeSet<usize> = (0..tools.len()).filter(|index| !met.contains(index)).collect();
    let edges: Vec<(usize, usize)> = left
        .iter()
        .filter_map(|index| tools.get(*index).map(|tool| (*index, tool)))
        .flat_map(|(index, tool)| {
            let ids = tool.manifest.requires.keys().filter_map(|id| by_id.get(id));
            ids.flatten().map(move |other| (index, *other)).collect::<Vec<_>>()
        })
        .filter(|(_, to)| left.contains(to))
        .collect();
    for forwards in [true, false] {
        let mut count: BTreeMap<usize, usize> = left.iter().map(|index| (*index, 0)).collect();
        let mut behind: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (from, to) in edges.iter().filter(|(from, to)| left.contains(from) && left.contains(to)) {
            let (counted, other) = if forwards { (from, to) } else { (to, from) };
            *count.entry(*counted).or_default() += 1;
            behind.entry(*other).or_default().push(*counted);
        }
        let mut free: Vec<usize> = count.iter().filter(|(_, n)| **n == 0).map(|(index, _)| *index).collect();
        while let Some(index) = free.pop() {
            left.remove(&index);
            for other in behind.get(&index).into_iter().flatten() {
                if let Some(n) = count.get_mut(other) {
                    *n = n.saturating_sub(1);
                    if *n == 0 {
                        free.push(*other);
                    }
                }
            }
        }
    }
    left
}
