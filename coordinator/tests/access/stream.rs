//! A gateway that speaks the protocol by hand, with a token.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    ClientMessage, CoordinatorMessage, KeyGrant, KeyReport, Open, Opened, Refused, Settle,
    SettledLease, Sync, client_message, coordinator_message::Kind as Told,
    leasehold_client::LeaseholdClient,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming, transport::Endpoint};

use crate::ground::{Token, WAIT};

pub(crate) struct Gateway {
    say: mpsc::Sender<ClientMessage>,
    told: Streaming<CoordinatorMessage>,
    seq: u64,
}

impl Gateway {
    /// A stream that asks to open or resume a session.
    pub(crate) async fn hello(
        addr: SocketAddr,
        token: Option<&Token>,
        resume: &[u8],
    ) -> Result<Self, Status> {
        let channel = Endpoint::from_shared(format!("http://{addr}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let (say, said) = mpsc::channel(64);
        let mut request = Request::new(ReceiverStream::new(said));
        if let Some(token) = token {
            let value = format!("Bearer {}", token.text).parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let open = client_message::Kind::Open(Open {
            holder: "gw".to_owned(),
            instance: vec![7; 16],
            resume: resume.to_vec(),
        });
        say.send(ClientMessage { kind: Some(open) }).await.unwrap();
        let told = LeaseholdClient::new(channel).session(request).await?;
        Ok(Self {
            say,
            told: told.into_inner(),
            seq: 0,
        })
    }

    /// A session.
    pub(crate) async fn open(addr: SocketAddr, token: &Token) -> (Self, Opened) {
        let mut gateway = Self::hello(addr, Some(token), &[]).await.unwrap();
        match gateway.next().await {
            Told::Opened(opened) => (gateway, opened),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn try_next(&mut self) -> Option<Told> {
        timeout(WAIT, self.told.message())
            .await
            .expect("told nothing")
            .unwrap()
            .map(|message| message.kind.unwrap())
    }

    pub(crate) async fn next(&mut self) -> Told {
        self.try_next().await.expect("the stream ended")
    }

    async fn say(&self, kind: client_message::Kind) {
        drop(self.say.send(ClientMessage { kind: Some(kind) }).await);
    }

    /// Says a sync of these and gives what it is answered; pushes are passed over.
    pub(crate) async fn sync(&mut self, reports: Vec<KeyReport>) -> Vec<KeyGrant> {
        self.seq += 1;
        self.say(client_message::Kind::Sync(Sync {
            seq: self.seq,
            reports,
        }))
        .await;
        loop {
            match self.next().await {
                Told::Synced(synced) if synced.seq == self.seq => return synced.grants,
                Told::Granted(_) | Told::Recall(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// A sync that asks for units of one key.
    pub(crate) async fn ask(&mut self, key_id: u32, key: &str, units: u64) -> KeyGrant {
        let mut grants = self.sync(vec![asking(key_id, key, units)]).await;
        assert_eq!(grants.len(), 1);
        grants.remove(0)
    }

    /// The next push.
    pub(crate) async fn pushed(&mut self) -> Vec<KeyGrant> {
        loop {
            match self.next().await {
                Told::Granted(granted) => return granted.grants,
                Told::Recall(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn settle(&mut self, session: &[u8], leases: Vec<SettledLease>) -> Told {
        self.say(client_message::Kind::Settle(Settle {
            session: session.to_vec(),
            leases,
        }))
        .await;
        self.next().await
    }

    /// Renews the session again and again, until the stream's last word.
    pub(crate) async fn renewed_until_refused(&mut self) -> Refused {
        loop {
            self.seq += 1;
            self.say(client_message::Kind::Sync(Sync {
                seq: self.seq,
                reports: Vec::new(),
            }))
            .await;
            let told = timeout(Duration::from_millis(500), self.told.message()).await;
            if let Ok(told) = told
                && let Told::Refused(refused) = told.unwrap().unwrap().kind.unwrap()
            {
                return refused;
            }
        }
    }

    /// The stream's last word.
    pub(crate) async fn refused(&mut self) -> Refused {
        loop {
            match self.next().await {
                Told::Refused(refused) => {
                    assert_eq!(self.try_next().await, None, "the stream ends with it");
                    return refused;
                }
                Told::Synced(_) | Told::Granted(_) | Told::Recall(_) | Told::Opened(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A report of nothing, with requests that wait for units.
pub(crate) fn asking(key_id: u32, key: &str, units: u64) -> KeyReport {
    KeyReport {
        key_id,
        key: key.to_owned(),
        want: units,
        waiting: units,
        waiting_head: u64::from(units > 0),
        wait_us: 60_000_000,
        ..KeyReport::default()
    }
}
