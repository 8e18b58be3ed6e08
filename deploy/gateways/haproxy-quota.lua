-- Asks the agent whether a request may go ahead. HAProxy's own client calls again when an
-- answer is slow, so each request has an id under which it is charged once.
local agent = "http://127.0.0.1:7080/v1/check"

core.register_action("quota", { "http-req" }, function(txn)
  -- X-Api-Key is for the header that whatever checks identities here writes.
  local key = txn.sf:req_fhdr("x-api-key")
  local headers = {
    ["x-quota-cost"] = { "1" },
    -- Unlike any other process's, whenever it was started.
    ["x-quota-request-id"] = { txn.f:uuid() },
  }
  if key and key ~= "" then headers["x-api-key"] = { key } end
  -- The policy's max_wait_ms (250 unless you set it), and a little more.
  local answer = core.httpclient():get { url = agent, headers = headers, timeout = 400 }
  local said = answer and answer.headers or {}
  local function one(name) return said[name] and said[name][0] or "" end
  -- HAProxy makes a 503 of its own when the agent does not answer.
  local is_agents = answer and (answer.status == 204 or one("content-type") == "application/problem+json")
  txn:set_var("txn.quota_status", is_agents and answer.status or 0)
  txn:set_var("txn.quota_body", answer and answer.body or "")
  txn:set_var("txn.quota_state", one("ratelimit"))
  txn:set_var("txn.quota_policy", one("ratelimit-policy"))
  txn:set_var("txn.quota_after", one("retry-after"))
end, 0)
