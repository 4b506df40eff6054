//! Messages to and from RabbitMQ or Pulsar, in the protocol of TrustGraph's tool services. `Terms`,
//! a `Subscription` and a `Topic` open a `Link`. This module does not know tools, and prints no
//! credential.

mod announcement;
mod delivery;
mod envelope;
mod link;
#[cfg(feature = "pulsar")]
mod pulsar;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod serve;
mod terms;

pub use announcement::{Announcement, AnnouncerKey, SignedAnnouncement};
pub use delivery::{Delivery, MAX_BODY_BYTES, MAX_ID_BYTES, PublishError, Subscription, Trace};
pub use envelope::{ServiceError, ToolServiceRequest, ToolServiceResponse};
pub use link::{Link, LinkState};
pub use serve::{ReplyStream, ServiceRequest, ToolService, serve};
pub use terms::{BrokerKind, Secret, Terms, Topic};
