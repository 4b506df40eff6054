//! A listener that other hosts send messages to: callbacks, traces.

use crate::prelude::*;
pub trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Records the messages, and answers with these statuses in turn; the last one repeats.
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
            let mut answers = answers
                .iter()
                .chain(std::iter::repeat(answers.last().unwrap()));
            for stream in listener.incoming().map_while(Result::ok) {
                let (mut stream, mut head) = (BufReader::new(speak(stream)), String::new());
                while !head.ends_with("\r\n\r\n")
                    && stream.read_line(&mut head).is_ok_and(|length| length > 0)
                {}
                let Some(length) = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                else {
                    continue;
                };
                let mut body = vec![0; length.parse().unwrap()];
                if stream.read_exact(&mut body).is_err() {
                    continue;
                }
                let body = String::from_utf8_lossy(&body).into_owned();
                told.lock()
                    .unwrap()
                    .push((head.trim_end().to_owned(), body));
                let answer = answers.next().unwrap();
                let body = if answer.starts_with("200") { "{}" } else { "" };
                let head = format!(
                    "content-type: application/json\r\ncontent-length: {}",
                    body.len()
                );
                let _ = write!(
                    stream.get_mut(),
                    "HTTP/1.1 {answer}\r\n{head}\r\nconnection: close\r\n\r\n{body}"
                );
                let _ = stream.get_mut().flush();
            }
        });
        Receiver { port, heard }
    }

    pub fn heard(&self) -> Vec<(String, String)> {
        self.heard.lock().unwrap().clone()
    }

    /// The messages, once there are `count`.
    pub fn waited(&self, count: usize) -> Vec<(String, String)> {
        wait_for(&format!("{count} messages"), || self.heard().len() >= count);
        self.heard()
    }
}
