// Amazon's SDK for Node.js, and sqs-consumer on it. Prints what it saw as one line of JSON.
"use strict"
const { SNSClient, CreateTopicCommand, SubscribeCommand, PublishCommand, PublishBatchCommand } = require("@aws-sdk/client-sns")
const {
    SQSClient, CreateQueueCommand, DeleteMessageBatchCommand, GetQueueAttributesCommand, GetQueueUrlCommand,
    QueueDoesNotExist, ReceiveMessageCommand, SendMessageBatchCommand, SendMessageCommand, paginateListQueues,
} = require("@aws-sdk/client-sqs")
const { Consumer } = require("sqs-consumer")

const sqs = new SQSClient({ maxAttempts: 1 })
const sns = new SNSClient({ maxAttempts: 1 })
const LEFT = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

async function queue(name, attributes) {
    return (await sqs.send(new CreateQueueCommand({ QueueName: name, Attributes: attributes }))).QueueUrl
}

async function attributes(url, names) {
    return (await sqs.send(new GetQueueAttributesCommand({ QueueUrl: url, AttributeNames: names }))).Attributes
}

// Messages of a topic and of a batch, by a consumer: one fails at first and comes again, one takes long and is kept.
async function consume() {
    const url = await queue("node-jobs", { VisibilityTimeout: "300" })
    const topic = (await sns.send(new CreateTopicCommand({ Name: "node-sales" }))).TopicArn
    const arn = (await attributes(url, ["QueueArn"])).QueueArn
    await sns.send(new SubscribeCommand({
        TopicArn: topic, Protocol: "sqs", Endpoint: arn, Attributes: { RawMessageDelivery: "true" },
    }))
    await sqs.send(new SendMessageBatchCommand({
        QueueUrl: url, Entries: [...Array(10).keys()].map((at) => ({ Id: `${at}`, MessageBody: `sent ${at}` })),
    }))
    await sqs.send(new SendMessageCommand({ QueueUrl: url, MessageBody: "bad" }))
    await sqs.send(new SendMessageCommand({ QueueUrl: url, MessageBody: "slow" }))
    await sns.send(new PublishCommand({
        TopicArn: topic, Message: "published",
        MessageAttributes: { size: { DataType: "Number", StringValue: "7" }, raw: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) } },
    }))
    await sns.send(new PublishBatchCommand({
        TopicArn: topic, PublishBatchRequestEntries: [...Array(3).keys()].map((at) => ({ Id: `${at}`, Message: `batch ${at}` })),
    }))

    const seen = [], failed = [], errors = []
    let beats = 0, attached = {}
    let beaten, finished
    const twice = new Promise((resolve) => { beaten = resolve }), all = new Promise((resolve) => { finished = resolve })
    sqs.middlewareStack.add((next, context) => async (request) => {
        const answer = await next(request)
        if (context.commandName.startsWith("ChangeMessageVisibility") && request.input.VisibilityTimeout !== 0 && ++beats === 2) beaten()
        return answer
    }, { step: "initialize" })
    const consumer = Consumer.create({
        queueUrl: url, sqs, batchSize: 10, waitTimeSeconds: 20, visibilityTimeout: 300, heartbeatInterval: 1,
        terminateVisibilityTimeout: true, messageAttributeNames: ["All"], messageSystemAttributeNames: ["All"],
        handleMessage: async (message) => {
            const count = Number(message.Attributes.ApproximateReceiveCount)
            seen.push([message.Body, count])
            if (message.Body === "bad" && count === 1) throw new Error("bad at first")
            if (message.Body === "slow") await twice
            if (message.Body === "published") {
                attached = { size: message.MessageAttributes.size.StringValue, raw: [...message.MessageAttributes.raw.BinaryValue] }
            }
            return message
        },
    })
    let done = 0
    consumer.on("message_processed", () => { if (++done === 16) finished() })
    consumer.on("processing_error", (error) => { failed.push(error.message) })
    consumer.on("error", (error) => { errors.push(`${error}`); finished() })
    consumer.start()
    await all
    const stopped = new Promise((resolve) => { consumer.on("stopped", resolve) })
    consumer.stop({ abort: true })
    await stopped
    // What the last of them was is deleted after it was processed.
    let left
    do { left = await attributes(url, LEFT) } while (left.ApproximateNumberOfMessagesNotVisible !== "0")
    return { seen: seen.sort(), failed, errors, attached, left }
}

// Groups of a FIFO queue, and what is sent twice.
async function fifo() {
    const url = await queue("node-orders.fifo", { FifoQueue: "true", ContentBasedDeduplication: "true" })
    for (const at of [0, 1, 2, 2]) {
        await sqs.send(new SendMessageBatchCommand({
            QueueUrl: url, Entries: ["a", "b"].map((group) => ({ Id: group, MessageBody: `${group}${at}`, MessageGroupId: group })),
        }))
    }
    const groups = { a: [], b: [] }
    while (groups.a.length + groups.b.length < 6) {
        const found = await sqs.send(new ReceiveMessageCommand({
            QueueUrl: url, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, MessageSystemAttributeNames: ["MessageGroupId"],
        }))
        for (const message of found.Messages) groups[message.Attributes.MessageGroupId].push(message.Body)
        await sqs.send(new DeleteMessageBatchCommand({
            QueueUrl: url, Entries: found.Messages.map((message, at) => ({ Id: `${at}`, ReceiptHandle: message.ReceiptHandle })),
        }))
    }
    return { groups, left: await attributes(url, LEFT) }
}

async function errors() {
    const told = {}
    try {
        await sqs.send(new GetQueueUrlCommand({ QueueName: "nobody-made-it" }))
    } catch (error) {
        told.queue = [error.name, error instanceof QueueDoesNotExist, error.$metadata.httpStatusCode]
    }
    try {
        await sns.send(new PublishCommand({ TopicArn: "arn:aws:sns:us-east-1:000000000000:nobody", Message: "x" }))
    } catch (error) {
        told.topic = [error.name, error.$metadata.httpStatusCode]
    }
    const pages = []
    for (let at = 0; at < 5; at++) await queue(`node-page-${at}`, {})
    for await (const page of paginateListQueues({ client: sqs, pageSize: 2 }, { QueueNamePrefix: "node-page-" })) pages.push(page.QueueUrls.length)
    return { ...told, pages }
}

async function main() {
    const [consumed, ordered, refused] = await Promise.all([consume(), fifo(), errors()])
    console.log(JSON.stringify({ consume: consumed, fifo: ordered, errors: refused }))
}

main().catch((error) => { console.error(error); process.exit(1) })
