//! HTTP: `wasi:http`, which a component of JavaScript imports whether needed or not. Every request is refused.
//!
//! For: the guest. In: a request that a guest made. Out: `HTTP-request-denied`. Never: connects.

use http_body_util::BodyExt;
use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::{Error, RequestOptions, Result, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks};

/// What `wasi:http` keeps for a call: headers are values of the guest's own, so they work.
#[derive(Default)]
pub struct Http {
    context: WasiHttpCtx,
    refused: Refused,
}

#[derive(Default)]
struct Refused;

impl Http {
    pub fn view<'a>(&'a mut self, table: &'a mut ResourceTable) -> WasiHttpCtxView<'a> {
        WasiHttpCtxView { hooks: &mut self.refused, table, ctx: &mut self.context }
    }
}

type Later<T> = Box<dyn Future<Output = Result<T>> + Send>;

impl WasiHttpHooks for Refused {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Later<()>,
    ) -> Later<(http::Response<WasiBody>, Later<()>)> {
        // Reads the body: a JavaScript component's runtime ends if its body is closed before it reads the answer.
        let mut body = request.into_body();
        tokio::spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}
