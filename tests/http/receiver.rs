//! A listener that other hosts send messages to: callbacks, traces.

use crate::prelude::*;
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Keeps what it is sent, and answers with these statuses in turn, the last one for ever.
pub struct Receiver {
    pub port: u16,
    heard: Arc<Mutex<Vec<(String, String)>>>,
}

impl Receiver {
    pub fn new(answers: &'static [&'static str]) -> Receiver {
        Receiver::by(answers, |stream| Box::new(stream))
    }

    pub fn by(
        answers: &'static [&'static str],
        speak: impl Fn(TcpStream) -> Box<dyn Stream> + Send + 'static,
    ) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let told = heard.clone();
        std::thread::spawn(move || {
            let mut answered = 0;
            for stream in listener.incoming().map_while(Result::ok) {
                let mut stream = speak(stream);
                let mut text = String::new();
                let mut piece = [0; 4096];
                let whole = |text: &str| {
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
                    (body.len() >= length.parse().unwrap()).then(|| (head.to_owned(), body.to_owned()))
                };
                while let Ok(length @ 1..) = stream.read(&mut piece) {
                    text += &String::from_utf8_lossy(&piece[..length]);
                    if let Some(message) = whole(&text) {
                        told.lock().unwrap().push(message);
                        let answer = answers[answered.min(answers.len() - 1)];
                        answered += 1;
                        let body = if answer.starts_with("200") { "{}" } else { "" };
                        let head = format!("content-type: application/json\r\ncontent-length: {}", body.len());
                        let _ = write!(stream, "HTTP/1.1 {answer}\r\n{head}\r\nconnection: close\r\n\r\n{body}");
                        let _ = stream.flush();
                        break;
                    }
                }
            }
        });
        Receiver { port, heard }
    }

    pub fn heard(&self) -> Vec<(String, String)> {
        self.heard.lock().unwrap().clone()
    }

    /// The messages, once there are so many.
    pub fn waited(&self, count: usize) -> Vec<(String, String)> {
        wait_for(&format!("{count} messages"), || self.heard().len() >= count);
        self.heard()
    }
}
