//! Written: a policy as plain data, for the comparison of two.
//!
//! For: `diff`. In: a policy. Out: JSON. Never: leaves out a field in silence.

use crate::policy::file::{Capability, NamedRuntime, Policy};
use crate::policy::hosts::HostRule;
use crate::policy::packages::Ecosystem;
use crate::policy::rules::Rule;
use crate::policy::{SecretRule, ServiceRule};
use serde_json::{Map, Value, json};

/// A policy as written, without the fields bound to `_`. All fields are named, so a new one does not build until it is
/// placed.
pub(super) fn written(policy: &Policy) -> Value {
    let Policy {
        name,
        why,
        folders,
        read,
        write,
        runtimes,
        capabilities,
        hosts,
        secrets,
        packages,
        services,
        mode: _,
        stderr: _,
        require_cgroup: _,
        observe,
        confirm,
        confirm_by_client,
        limits: _,
        tools: _,
        file: _,
        digest: _,
    } = policy;
    let rules = |rules: &[Rule]| rules.iter().map(|r| (r.text.clone(), json!(r.why))).collect::<Map<_, _>>();
    let capability = |c: &Capability| (c.name.clone(), json!(c.why));
    let host = |rule: &HostRule| (rule.pattern.to_string(), json!({ "ranges": rule.ranges, "why": rule.why }));
    let secret = |rule: &SecretRule| {
        let about = json!({ "from": rule.from.to_string(), "header": rule.header, "why": rule.why });
        (rule.name.clone(), about)
    };
    let service = |rule: &ServiceRule| {
        let about = json!({ "request": rule.request, "response": rule.response, "user": rule.user, "why": rule.why });
        (rule.service.clone(), about)
    };
    let allowed = |ecosystem: &Ecosystem| Some((ecosystem.name().to_owned(), json!(packages.rules(*ecosystem)?)));
    let runtime = |(language, named): (&crate::manifest::Language, &NamedRuntime)| {
        (language.name().to_owned(), json!({ "path": named.path.to_string_lossy(), "why": named.why }))
    };
    json!({
        "policy": name,
        "why": why,
        "observe": observe,
        "confirm": confirm,
        "confirmByClient": confirm_by_client,
        "folders": folders.iter().map(|f| f.path.to_string_lossy()).collect::<Vec<_>>(),
        "files": { "read": rules(read), "write": rules(write) },
        "runtimes": runtimes.iter().map(runtime).collect::<Map<_, _>>(),
        "capabilities": capabilities.iter().map(capability).collect::<Map<_, _>>(),
        "hosts": hosts.iter().map(host).collect::<Map<_, _>>(),
        "secrets": secrets.iter().map(secret).collect::<Map<_, _>>(),
        "services": services.iter().map(service).collect::<Map<_, _>>(),
        "packages": {
            "allowed": Ecosystem::ALL.iter().filter_map(allowed).collect::<Map<_, _>>(),
            "deny": packages.deny, "minAgeDays": packages.min_age_days,
        },
    })
}
