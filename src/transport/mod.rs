//! Transports: bytes ⇄ the road of one call. A transport holds no logic.
//!
//! For: agents and other programs. In: a protocol's messages. Out: calls to `service`, and its reports
//! in the protocol's words. Never: another road to a tool than `Service::call`.

pub mod action;
pub mod mcp;
