// Drives nsqjs: `node tests/foreign/clients/nsqjs.js`, with the plan of plan.py on standard input.

const fs = require('fs')
const readline = require('readline')
const nsq = require('nsqjs')

const tell = (answer) => console.log(JSON.stringify(answer))
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))

function options(plan) {
  const chosen = {}
  if (plan.layer === 'tls') {
    chosen.tls = true
    chosen.ca = fs.readFileSync(plan.authority)
  } else if (plan.layer) {
    chosen[plan.layer] = true
  }
  if (plan.secret) chosen.authSecret = plan.secret
  if (plan.asks_timeout) chosen.messageTimeout = plan.timeout_s * 1000
  return chosen
}

function publish(plan) {
  const bodies = plan.bodies.map((body) => Buffer.from(body, 'base64'))
  const [host, port] = plan.nodes[0].split(':')
  const writer = new nsq.Writer(host, Number(port), options(plan))
  writer.on('error', (error) => tell({error: String(error)}))
  writer.on('ready', async () => {
    const send = (messages) =>
      new Promise((resolve) => writer.publish(plan.topic, messages, (error) => resolve(error ? String(error) : 'OK')))
    tell({answers: await Promise.all(plan.work === 'mpub' ? [send(bodies)] : bodies.map(send))})
  })
  writer.connect()
}

function consume(plan) {
  const seen = []
  let finished = 0
  const reader = new nsq.Reader(plan.topic, plan.channel, {
    nsqdTCPAddresses: plan.nodes,
    lookupdHTTPAddresses: plan.lookup,
    lookupdPollInterval: 1,
    maxInFlight: 20,
    ...options(plan),
  })
  reader.on('error', (error) => tell({error: String(error)}))
  reader.on('message', async (message) => {
    const isFirst = message.attempts === 1
    seen.push([message.attempts, message.body.toString('base64')])
    if (isFirst && plan.first === 'requeue') return message.requeue(0, false)
    if (isFirst && plan.first === 'leave') return
    if (plan.first === 'touch') {
      await sleep(0.6 * plan.timeout_s)
      message.touch()
      await sleep(0.6 * plan.timeout_s)
    }
    message.finish()
    finished += 1
    if (finished === plan.count) tell({seen})
  })
  reader.connect()
}

readline
  .createInterface({input: process.stdin})
  .once('line', (line) => {
    const plan = JSON.parse(line)
    try {
      plan.work === 'consume' ? consume(plan) : publish(plan)
    } catch (error) {
      tell({error: String(error)})
    }
  })
  .on('close', () => process.exit())
