package interop;

import io.zbus.mq.Broker;
import io.zbus.mq.ConsumeGroup;
import io.zbus.mq.Consumer;
import io.zbus.mq.ConsumerConfig;
import io.zbus.mq.Message;
import io.zbus.mq.MqClient;
import io.zbus.mq.Producer;
import io.zbus.mq.Protocol;
import io.zbus.mq.server.MqServer;
import io.zbus.mq.server.MqServerConfig;
import io.zbus.rpc.RpcInvoker;
import io.zbus.rpc.RpcProcessor;
import io.zbus.transport.EventLoop;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The published client in every role, driven from outside: `Peer ROLE ADDRESS [ARGS]`.
 * A scenario prints "ok NAME" when all it expects came true, and fails loudly otherwise.
 */
public final class Peer {
    private static final int MANY = 10_000;

    public static void main(String[] args) {
        try {
            run(args);
        } catch (Throwable problem) {
            // The client's threads would keep the program alive.
            System.err.println("failed: " + problem);
            System.exit(1);
        }
    }

    private static void run(String[] args) throws Exception {
        String role = args[0];
        String address = args[1];
        switch (role) {
            case "server": server(address, args); return;
            case "service": service(address, args[2]); return;
            case "call": call(address, args[2]); break;
            case "absent": absent(address, args[2]); break;
            case "more": more(address, args[2]); break;
            case "unicast": unicast(address); break;
            case "broadcast": broadcast(address); break;
            case "multicast": multicast(address); break;
            case "filter": filter(address); break;
            case "starts": starts(address); break;
            case "admin": admin(address, args.length > 2 && args[2].equals("real")); break;
            case "rpc": rpc(address); break;
            case "many": many(address); break;
            case "failover": failover(address, args[2]); break;
            case "produce": produce(address, args[2], Integer.parseInt(args[3])); break;
            case "take": take(address, args[2], Integer.parseInt(args[3])); break;
            default: throw new IllegalArgumentException(role);
        }
        System.out.println("ok " + role);
        System.exit(0);
    }

    /** The real server; extra arguments are its store and its trackers. */
    private static void server(String address, String[] args) throws Exception {
        MqServerConfig config = new MqServerConfig();
        String[] parts = address.split(":");
        config.setServerHost(parts[0]);
        config.setServerName(parts[0]);
        config.setServerPort(Integer.parseInt(parts[1]));
        config.setMqPath(args[2]);
        for (int i = 3; i < args.length; i++) {
            config.addTracker(args[i]);
        }
        new MqServer(config).start();
        System.out.println("ready");
        Thread.currentThread().join();
    }

    // -- parts ------------------------------------------------------------------------------------

    private static MqClient connect(String address, EventLoop loop) throws Exception {
        MqClient client = new MqClient(address, loop);
        client.setInvokeTimeout(10_000);
        return client;
    }

    private static Message message(String topic, String tag, String body) {
        Message message = new Message();
        message.setTopic(topic);
        if (tag != null) {
            message.setTag(tag);
        }
        message.setBody(body);
        return message;
    }

    private static void produceNumbers(MqClient client, String topic, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            Message answer = client.produce(message(topic, null, "" + i));
            check(answer.getStatus() == 200, "produce " + i + ": " + answer.getStatus());
        }
    }

    private static List<String> consume(MqClient client, String topic, String group, int count) throws Exception {
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            bodies.add(client.consume(topic, group).getBodyString());
        }
        return bodies;
    }

    private static List<String> numbers(int from, int to) {
        List<String> found = new ArrayList<>();
        for (int i = from; i < to; i++) {
            found.add("" + i);
        }
        return found;
    }

    private static void check(boolean good, String what) {
        if (!good) {
            System.err.println("failed: " + what);
            System.exit(1);
        }
    }

    private static void same(Object wanted, Object found, String what) {
        check(wanted.equals(found), what + ": wanted " + brief(wanted) + ", found " + brief(found));
    }

    private static String brief(Object value) {
        String text = "" + value;
        return text.length() <= 400 ? text : text.substring(0, 400) + "...";
    }

    private static Consumer start(Broker broker, String topic, String group, String filter, List<String> got,
                                  CountDownLatch latch) throws Exception {
        ConsumerConfig config = new ConsumerConfig(broker);
        config.setTopic(topic);
        ConsumeGroup consumeGroup = new ConsumeGroup(group);
        if (filter != null) {
            consumeGroup.setFilter(filter);
        }
        config.setConsumeGroup(consumeGroup);
        config.setConsumeWindow(10);
        config.setConnectionCount(1);
        config.setMaxInFlightMessage(1);
        config.setConsumeRunnerPoolSize(1);
        config.setMessageHandler((message, client) -> {
            synchronized (got) {
                got.add(message.getBodyString());
            }
            latch.countDown();
        });
        Consumer consumer = new Consumer(config);
        consumer.start();
        return consumer;
    }

    // -- scenarios --------------------------------------------------------------------------------

    /** Two consumers of one group share the messages. */
    private static void unicast(String address) throws Exception {
        Broker broker = new Broker(address);
        Producer producer = new Producer(broker);
        producer.declareTopic("Unicast");
        List<String> one = new ArrayList<>();
        List<String> two = new ArrayList<>();
        CountDownLatch latch = new CountDownLatch(100);
        Consumer first = start(broker, "Unicast", "Unicast", null, one, latch);
        Consumer second = start(broker, "Unicast", "Unicast", null, two, latch);
        Thread.sleep(1000);
        for (int i = 0; i < 100; i++) {
            producer.publish(message("Unicast", null, "" + i));
        }
        check(latch.await(20, TimeUnit.SECONDS), "unicast got " + one.size() + " and " + two.size());
        check(!one.isEmpty() && !two.isEmpty(), "both consumers get some");
        one.addAll(two);
        one.sort((a, b) -> Integer.parseInt(a) - Integer.parseInt(b));
        same(numbers(0, 100), one, "each message once");
        first.close();
        second.close();
        broker.close();
    }

    /** Every group gets every message. */
    private static void broadcast(String address) throws Exception {
        Broker broker = new Broker(address);
        Producer producer = new Producer(broker);
        producer.declareTopic("Broadcast");
        List<List<String>> got = new ArrayList<>();
        CountDownLatch latch = new CountDownLatch(150);
        for (int i = 0; i < 3; i++) {
            got.add(new ArrayList<>());
            start(broker, "Broadcast", "group" + i, null, got.get(i), latch);
        }
        Thread.sleep(1000);
        for (int i = 0; i < 50; i++) {
            producer.publish(message("Broadcast", null, "" + i));
        }
        check(latch.await(20, TimeUnit.SECONDS), "broadcast");
        for (List<String> each : got) {
            each.sort((a, b) -> Integer.parseInt(a) - Integer.parseInt(b));
            same(numbers(0, 50), each, "every group");
        }
        broker.close();
    }

    /** Within a group the messages are shared, between groups each gets all. */
    private static void multicast(String address) throws Exception {
        Broker broker = new Broker(address);
        Producer producer = new Producer(broker);
        producer.declareTopic("Multicast");
        List<String> left = new ArrayList<>();
        List<String> right = new ArrayList<>();
        CountDownLatch latch = new CountDownLatch(80);
        start(broker, "Multicast", "left", null, left, latch);
        start(broker, "Multicast", "left", null, left, latch);
        start(broker, "Multicast", "right", null, right, latch);
        Thread.sleep(1000);
        for (int i = 0; i < 40; i++) {
            producer.publish(message("Multicast", null, "" + i));
        }
        check(latch.await(20, TimeUnit.SECONDS), "multicast " + left.size() + " " + right.size());
        right.sort((a, b) -> Integer.parseInt(a) - Integer.parseInt(b));
        same(numbers(0, 40), right, "right");
        same(40, left.size(), "left");
        broker.close();
    }

    /** A group gets what its filter lets through. */
    private static void filter(String address) throws Exception {
        EventLoop loop = new EventLoop();
        MqClient client = connect(address, loop);
        client.declareTopic("Filter");
        ConsumeGroup group = new ConsumeGroup("abc");
        group.setFilter("abc");
        client.declareGroup("Filter", group);
        client.produce(message("Filter", null, "untagged"));
        client.produce(message("Filter", "xyz", "other"));
        client.produce(message("Filter", "abc", "wanted"));
        same("wanted", client.consume("Filter", "abc").getBodyString(), "filter");
        client.close();
    }

    /** Groups start where they are told to. */
    private static void starts(String address) throws Exception {
        EventLoop loop = new EventLoop();
        MqClient client = connect(address, loop);
        client.declareTopic("Starts");
        produceNumbers(client, "Starts", 0, 10);
        client.declareGroup("Starts", new ConsumeGroup("reader"));
        same(numbers(0, 4), consume(client, "Starts", "reader", 4), "reader");
        Message fifth = client.consume("Starts", "reader");
        Thread.sleep(20);
        long time = System.currentTimeMillis();
        produceNumbers(client, "Starts", 10, 12);

        ConsumeGroup copy = new ConsumeGroup("copy");
        copy.setStartCopy("reader");
        client.declareGroup("Starts", copy);
        String copied = client.consume("Starts", "copy").getBodyString();
        // What the reader holds unconfirmed is not behind it yet: a copy sees it as well.
        check(copied.equals("4") || copied.equals("5"), "copy: " + copied);

        ConsumeGroup offset = new ConsumeGroup("offset");
        offset.setStartOffset(fifth.getOffset());
        offset.setStartMsgId(fifth.getOriginId());
        client.declareGroup("Starts", offset);
        same(numbers(4, 7), consume(client, "Starts", "offset", 3), "offset");

        ConsumeGroup at = new ConsumeGroup("time");
        at.setStartTime(time);
        client.declareGroup("Starts", at);
        same(numbers(10, 12), consume(client, "Starts", "time", 2), "time");
        client.close();
    }

    /** What is in a topic that others have filled, with two of the headers they put there. */
    private static void take(String address, String topic, int count) throws Exception {
        MqClient client = connect(address, new EventLoop());
        ConsumeGroup reader = new ConsumeGroup("reader");
        reader.setStartOffset(0L);
        client.declareGroup(topic, reader);
        for (int i = 0; i < count; i++) {
            Message message = client.consume(topic, "reader");
            String from = message.getHeader("wire", message.getHeader("call-from"));
            String id = message.getHeader("call-id", "-");
            System.out.println("took " + message.getTag() + " " + from + " " + id + " " + message.getBodyString());
        }
        client.close();
    }

    /** Query, empty and remove. */
    private static void admin(String address, boolean real) throws Exception {
        EventLoop loop = new EventLoop();
        MqClient client = connect(address, loop);
        Protocol.TopicInfo topic = client.declareTopic("Admin");
        same("Admin", topic.topicName, "declared");
        produceNumbers(client, "Admin", 0, 5);
        same(5L, client.queryTopic("Admin").messageDepth, "depth");
        same(5L, client.queryGroup("Admin", "Admin").messageCount, "left");
        consume(client, "Admin", "Admin", 2);
        same(3L, client.queryGroup("Admin", "Admin").messageCount, "left after two");
        check(client.queryServer().topicTable.containsKey("Admin"), "server info");
        check(client.queryTracker().serverTable.containsKey(address), "tracker info of " + address);
        if (!real) {
            client.emptyGroup("Admin", "Admin");
            same(0L, client.queryGroup("Admin", "Admin").messageCount, "emptied group");
            produceNumbers(client, "Admin", 0, 3);
            client.emptyTopic("Admin");
            same(0L, client.queryGroup("Admin", "Admin").messageCount, "emptied topic");
            produceNumbers(client, "Admin", 7, 8);
            same(numbers(7, 8), consume(client, "Admin", "Admin", 1), "after empty");
        }
        client.declareGroup("Admin", new ConsumeGroup("second"));
        client.removeGroup("Admin", "second");
        try {
            client.queryGroup("Admin", "second");
            check(false, "a removed group is gone");
        } catch (io.zbus.mq.MqException e) {
            check(e.getMessage().contains("ConsumeGroup(second) Not Found"), e.getMessage());
        }
        client.removeTopic("Admin");
        try {
            client.queryTopic("Admin");
            check(false, "a removed topic is gone");
        } catch (io.zbus.mq.MqException e) {
            check(e.getMessage().contains("Topic(Admin) Not Found"), e.getMessage());
        }
        client.close();
    }

    /** A service with a method that works and one that throws. */
    public static class Calc {
        public int plus(int a, int b) {
            return a + b;
        }

        public String boom(String text) {
            throw new IllegalArgumentException("boom-" + text);
        }
    }

    private static Consumer serve(Broker broker, String topic) throws Exception {
        RpcProcessor processor = new RpcProcessor();
        processor.addModule(new Calc());
        ConsumerConfig config = new ConsumerConfig(broker);
        config.setTopic(topic);
        config.setTopicMask(Protocol.MASK_RPC);
        config.setMessageHandler(processor);
        config.setConnectionCount(2);
        Consumer consumer = new Consumer(config);
        consumer.start();
        return consumer;
    }

    private static void service(String address, String topic) throws Exception {
        serve(new Broker(address), topic);
        System.out.println("ready");
        Thread.currentThread().join();
    }

    private static void callOnce(Broker broker, String topic) throws Exception {
        RpcInvoker invoker = new RpcInvoker(broker, topic);
        same(3, invoker.invokeSync(Integer.class, "plus", 1, 2), "plus");
        try {
            invoker.invokeSync(String.class, "boom", "x");
            check(false, "boom throws");
        } catch (RuntimeException e) {
            check(("" + e + e.getCause()).contains("boom-x"), "boom: " + e);
        }
    }

    private static void call(String address, String topic) throws Exception {
        callOnce(new Broker(address), topic);
    }

    /** Nobody serves the topic: an error at once. */
    private static void absent(String address, String topic) throws Exception {
        try {
            new RpcInvoker(new Broker(address), topic).invokeSync(Integer.class, "plus", 1, 2);
            check(false, "nobody answers " + topic);
        } catch (RuntimeException e) {
            System.out.println("absent: " + e + e.getCause());
        }
    }

    /** A payload that is large, then a call that its service does not live to answer. */
    private static void more(String address, String topic) throws Exception {
        RpcInvoker invoker = new RpcInvoker(new Broker(address), topic);
        char[] large = new char[512 * 1024];
        java.util.Arrays.fill(large, 'x');
        String text = new String(large);
        System.out.println("calling");
        same(text, invoker.invokeSync(String.class, "echo", text), "half a mebibyte");
        System.out.println("same");
        System.out.println("calling");
        try {
            invoker.invokeSync(String.class, "hold", "x");
            check(false, "an answer of a service that is gone");
        } catch (RuntimeException e) {
            System.out.println("gone: " + e + e.getCause());
        }
    }

    private static void rpc(String address) throws Exception {
        Broker broker = new Broker(address);
        Consumer consumer = serve(broker, "Rpc");
        Thread.sleep(1500);
        callOnce(broker, "Rpc");
        AtomicInteger good = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            Thread thread = new Thread(() -> {
                RpcInvoker invoker = new RpcInvoker(broker, "Rpc");
                for (int i = 0; i < 100; i++) {
                    if (invoker.invokeSync(Integer.class, "plus", i, i) == 2 * i) {
                        good.incrementAndGet();
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        same(800, good.get(), "more callers than service connections");
        consumer.close();
        broker.close();
    }

    /** Ten thousand messages: none lost, all in order. */
    private static void many(String address) throws Exception {
        Broker broker = new Broker(address);
        Producer producer = new Producer(broker);
        producer.declareTopic("Many");
        AtomicInteger answered = new AtomicInteger();
        CountDownLatch acked = new CountDownLatch(MANY);
        EventLoop loop = new EventLoop();
        MqClient client = connect(address, loop);
        client.produce(message("Many", null, "-1"));
        for (int i = 0; i < MANY; i++) {
            client.produceAsync(message("Many", null, "" + i), answer -> {
                if (answer.getStatus() == 200) {
                    answered.incrementAndGet();
                }
                acked.countDown();
            });
        }
        check(acked.await(60, TimeUnit.SECONDS), "all acknowledged: " + answered.get());
        same(MANY, answered.get(), "acknowledged with 200");
        // The client's own Consumer hands messages to threads, so only its plain consume shows the order.
        client.declareGroup("Many", new ConsumeGroup("ordered"));
        same(numbers(-1, MANY), consume(client, "Many", "ordered", MANY + 1), "all of them in order");
        List<String> got = new ArrayList<>();
        CountDownLatch latch = new CountDownLatch(MANY + 1);
        start(broker, "Many", "Many", null, got, latch);
        check(latch.await(120, TimeUnit.SECONDS), "consumed " + got.size());
        got.sort((a, b) -> Integer.parseInt(a) - Integer.parseInt(b));
        same(numbers(-1, MANY), got, "none lost, none twice");
        broker.close();
    }

    private static void produce(String address, String topic, int count) throws Exception {
        EventLoop loop = new EventLoop();
        MqClient client = connect(address, loop);
        client.declareTopic(topic);
        produceNumbers(client, topic, 0, count);
    }

    /**
     * Follows a tracker, uses both servers it knows, and goes on with one when the other is gone: says "serving", then
     * waits for a line on stdin that tells which server was killed.
     */
    private static void failover(String tracker, String topic) throws Exception {
        Broker broker = new Broker(tracker);
        Producer producer = new Producer(broker);
        Thread.sleep(2000);
        int servers = producer.declareTopic(topic).length;
        same(2, servers, "servers behind the tracker");
        List<String> got = new ArrayList<>();
        CountDownLatch some = new CountDownLatch(20);
        ConsumerConfig config = new ConsumerConfig(broker);
        config.setTopic(topic);
        config.setMessageHandler((message, client) -> {
            synchronized (got) {
                got.add(message.getBodyString());
            }
            some.countDown();
        });
        new Consumer(config).start();
        Thread.sleep(2000);
        for (int i = 0; i < 20; i++) {
            producer.publish(message(topic, null, "a" + i));
        }
        check(some.await(20, TimeUnit.SECONDS), "before the failure: " + got.size());
        System.out.println("serving");
        System.in.read();
        Thread.sleep(4000);
        int sent = 0;
        for (int i = 0; i < 20; i++) {
            try {
                if (producer.publish(message(topic, null, "b" + i)).getStatus() == 200) {
                    sent++;
                }
            } catch (Exception e) {
                System.err.println("publish " + i + ": " + e);
            }
        }
        same(20, sent, "published after the failure");
        for (int i = 0; i < 200; i++) {
            synchronized (got) {
                if (got.size() >= 40) {
                    break;
                }
            }
            Thread.sleep(100);
        }
        synchronized (got) {
            check(got.contains("b0") && got.contains("b19"), "consumed after the failure: " + got);
        }
    }
}
