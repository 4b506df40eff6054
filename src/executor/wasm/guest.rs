//! The state of one store, and what its guest may import.

use super::adapt::EXITS;
use super::folders::Folders;
use super::http::Http;
use super::refused::{Granted, Refused, Watch};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::Arc;
use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime::{Engine, ResourceLimiter, StoreContextMut};
use wasmtime_wasi::p2::bindings::filesystem::{preopens, types};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{ip_name_lookup, tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{SocketError, SocketResult, TcpSocket, UdpSocket};
use wasmtime_wasi::sockets::WasiSocketsView;
use wasmtime_wasi::{I32Exit, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtxView, WasiHttpView};

/// Largest table of a guest, elements.
const MAX_TABLE_ELEMENTS: usize = 1_000_000;

/// State of one store.
pub struct Guest {
    pub table: ResourceTable,
    pub meter: Meter,
    wasi: WasiCtx,
    http: Http,
    pub folders: Option<Folders>,
    /// The names of opened files and folders, by handle.
    pub names: HashMap<u32, String>,
    /// What is granted, and who hears of what is refused.
    pub granted: Option<Arc<Granted>>,
    pub watch: Watch,
    salt: RandomState,
}

impl Guest {
    /// `memory`: most bytes of all its linear memories together. `networked`: it may send HTTP requests.
    pub fn new(wasi: WasiCtx, folders: Option<Folders>, memory: u64, networked: bool, watch: Watch) -> Guest {
        let meter = Meter { allowed: memory, total: 0, peak: 0, asked: 0, refused: false, watch: watch.clone() };
        let http = Http::new(networked, watch.clone());
        let (table, names, salt) = (ResourceTable::new(), HashMap::new(), RandomState::new());
        Guest { table, meter, wasi, http, folders, names, granted: None, watch, salt }
    }

    pub fn salt(&self, value: &impl Hash) -> u64 {
        self.salt.hash_one(value)
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        self.http.view(&mut self.table)
    }
}

impl network::Host for Guest {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(&mut self, error: Resource<wasmtime::Error>) -> wasmtime::Result<Option<ErrorCode>> {
        self.sockets().network_error_code(error)
    }
}

impl network::HostNetwork for Guest {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.sockets(), network)
    }
}

/// Sockets are made by wasmtime-wasi, which refuses them as a whole or not at all.
impl tcp_create_socket::Host for Guest {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        let made = self.sockets().create_tcp_socket(family);
        self.made(made, Refused::Tcp)
    }
}

impl udp_create_socket::Host for Guest {
    async fn create_udp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>> {
        let made = self.sockets().create_udp_socket(family).await;
        self.made(made, Refused::Udp)
    }
}

impl Guest {
    fn made<T>(&self, made: SocketResult<T>, refused: Refused) -> SocketResult<T> {
        if let Err(error) = &made
            && matches!(error.downcast_ref(), Some(ErrorCode::AccessDenied))
        {
            self.watch.saw(refused);
        }
        made
    }
}

/// Counts all linear memories of a call together.
pub struct Meter {
    allowed: u64,
    total: u64,
    pub peak: u64,
    /// What the growth under way asked for, to be taken back if it fails.
    asked: u64,
    pub refused: bool,
    watch: Watch,
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        self.asked = desired.saturating_sub(current) as u64;
        let total = self.total.saturating_add(self.asked);
        if total > self.allowed {
            self.refused = true;
            // A script ends when it passes its memory limit, and so does a module: its memory.grow does not just fail.
            return Err(wasmtime::Error::msg("past memoryBytes"));
        }
        self.total = total;
        self.peak = self.peak.max(total);
        Ok(true)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.total = self.total.saturating_sub(self.asked);
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > MAX_TABLE_ELEMENTS {
            self.watch.saw(Refused::Table);
        }
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }
}

/// What a guest may import: WASI 0.2 with `wasi:http`, and the exit code of adapted modules (see `adapt`). Replaced is
/// what wasmtime-wasi refuses in silence (files, sockets, names), and `get-directories`, which knows only the folders of
/// one store.
pub fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    struct GuestData;
    impl HasData for GuestData {
        type Data<'a> = &'a mut Guest;
    }
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    linker.instance(EXITS)?.func_wrap("proc-exit", |_, (code,): (u32,)| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(I32Exit(code.cast_signed())))
    })?;
    linker.allow_shadowing(true);
    preopens::add_to_linker::<Guest, GuestData>(&mut linker, |guest| guest)?;
    types::add_to_linker::<Guest, GuestData>(&mut linker, |guest| guest)?;
    tcp_create_socket::add_to_linker::<Guest, GuestData>(&mut linker, |guest| guest)?;
    udp_create_socket::add_to_linker::<Guest, GuestData>(&mut linker, |guest| guest)?;
    linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?.func_wrap(
        "resolve-addresses",
        |mut store: StoreContextMut<Guest>, (network, name): (Resource<Network>, String)| {
            let guest = store.data_mut();
            let asked = name.clone();
            let found = ip_name_lookup::Host::resolve_addresses(&mut guest.sockets(), network, name);
            let refused = || found.as_ref().err()?.downcast_ref();
            if matches!(refused(), Some(ErrorCode::PermanentResolverFailure)) {
                guest.watch.saw(Refused::Name { name: asked });
            }
            Ok((found.map(Ok).or_else(|error| error.downcast().map(Err))?,))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(linker)
}
